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
	for runtime, hint := range map[string]string{
		config.RuntimeCRIO:     "hint: rootlessnode exec -- skopeo copy",
		config.RuntimeExternal: "hint: rootlessnode exec -- PROGRAM    # the client of the external runtime",
	} {
		c := newCLI(t)
		c.node.cfg.CRI.Runtime = runtime
		c.node.exec = func(nodeexec.Request) (int, error) {
			t.Error("a program was started")
			return 0, nil
		}
		for _, args := range [][]string{{"import", file}, {"load", "app"}, {"build", "-t", "app", "."}, {"pull", "app"}, {"remove", "app"}} {
			assert.Equal(t, c.run(append([]string{"images"}, args...)...), errdefs.ExitConfig)
			assert.Check(t, is.Contains(c.err.String(), "the node's runtime is "+runtime))
			switch args[0] {
			case "import", "load", "build":
				assert.Check(t, is.Contains(c.err.String(), hint))
			default:
				assert.Check(t, is.Contains(c.err.String(), "hint: rootlessnode exec -- crictl "))
			}
			c.err.Reset()
		}
	}
}
