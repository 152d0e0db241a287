package noderole

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// claimed returns a data dir with a record.
func claimed(t *testing.T) layout.Data {
	t.Helper()
	d := layout.NewData(t.TempDir())
	ids := []datadir.IDRange{{Start: 100000, Count: 65536}}
	assert.NilError(t, datadir.Claim(d, "one", datadir.IDs{UID: os.Getuid(), GID: os.Getgid(), Subuids: ids, Subgids: ids}, "dev"))
	return d
}

// TestRecordIdentity checks that the node role records the snapshotter and the encryption key, and reports another snapshotter.
func TestRecordIdentity(t *testing.T) {
	t.Parallel()
	d := claimed(t)
	env := component.Env{Config: testConfig(), Storage: component.Storage{Snapshotter: "overlayfs"}}
	_, err := recordIdentity(env, d)
	assert.ErrorContains(t, err, "read the encryption configuration")
	assert.NilError(t, os.MkdirAll(d.PKI(), 0o700))
	assert.NilError(t, os.WriteFile(filepath.Join(d.PKI(), "encryption-config.yaml"),
		[]byte("kind: EncryptionConfiguration\nresources: [{resources: [secrets], providers: [{identity: {}}]}]"), 0o600))
	warnings, err := recordIdentity(env, d)
	assert.NilError(t, err)
	assert.Equal(t, len(warnings), 0)
	i, err := datadir.ReadIdentity(d)
	assert.NilError(t, err)
	assert.Equal(t, i.Snapshotter+" "+i.EncryptionKey, "overlayfs identity")

	env.Snapshotter = "native"
	warnings, err = recordIdentity(env, d)
	assert.NilError(t, err)
	assert.Assert(t, len(warnings) == 1 && strings.Contains(warnings[0], "was overlayfs and is now native"), "%v", warnings)
}

// TestFormerNodes checks that the Node objects of former names and their pods are deleted once.
func TestFormerNodes(t *testing.T) {
	t.Parallel()
	d := claimed(t)
	api := &stubAPI{answer: func(r *http.Request) (int, any) {
		if r.Method == http.MethodGet {
			return http.StatusOK, map[string]any{"items": []any{map[string]any{"metadata": map[string]any{"namespace": "a", "name": "web"}}}}
		}
		return http.StatusOK, map[string]any{}
	}}
	f := &formerNodes{data: d, log: logrus.New(), client: api.start(t)}
	assert.Assert(t, !f.any())
	assert.NilError(t, datadir.UpdateIdentity(d, func(i *datadir.Identity) {
		i.Rename("old", "old")
		i.Rename("new", "new")
	}))
	assert.Assert(t, f.any())
	assert.NilError(t, f.Run(t.Context()))
	assert.Equal(t, len(api.requests), 3, "%v", api.requests)
	assert.Assert(t, strings.HasPrefix(api.requests[0], "DELETE /api/v1/nodes/old"), "%v", api.requests)
	assert.Assert(t, strings.HasPrefix(api.requests[2], "DELETE /api/v1/namespaces/a/pods/web"), "%v", api.requests)
	assert.Assert(t, !f.any())
}
