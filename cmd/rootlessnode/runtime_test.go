package main

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// TestImagesNeedContainerd checks that the commands return an error with other runtimes and start nothing.
func TestImagesNeedContainerd(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a.tar")
	assert.NilError(t, os.WriteFile(file, []byte("archive"), 0o600))
	for _, tc := range []struct{ runtime, command, hint string }{
		{config.RuntimeCRIO, "import", "hint: rootlessnode exec -- skopeo copy"},
		{config.RuntimeCRIO, "list", "hint: rootlessnode exec -- crictl images"},
		{config.RuntimeExternal, "import", "hint: use the client of the external runtime"},
	} {
		c := newCLI(t)
		c.node.cfg.CRI.Runtime = tc.runtime
		c.node.exec = func(nodeexec.Request) (int, error) {
			t.Error("a program was started")
			return 0, nil
		}
		args := []string{"images", tc.command}
		if tc.command == "import" {
			args = append(args, file)
		}
		assert.Equal(t, c.run(args...), errdefs.ExitConfig)
		assert.Check(t, is.Contains(c.err.String(), "the node's runtime is "+tc.runtime))
		assert.Check(t, is.Contains(c.err.String(), tc.hint))
	}
}

func TestParseCRI(t *testing.T) {
	t.Parallel()
	got := parseCRI(`{"containers": [{"id": "c", "labels": {"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "a", "io.kubernetes.pod.uid": "u"}}]}
{"items": [{"id": "s", "labels": {"io.kubernetes.pod.name": "web"}}]}`)
	assert.DeepEqual(t, got, map[string]podName{"c": {"web", "a", "u"}, "s": {Name: "web"}})
}
