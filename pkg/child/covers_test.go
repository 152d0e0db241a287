package child

import (
	"net"
	"os"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/copyup"
)

// coversOf returns the covers of a node whose runtime directory is xdg, by path.
func coversOf(xdg string, cfg *config.NodeConfig) map[string]copyup.Cover {
	found := map[string]copyup.Cover{}
	for _, c := range fileSystem(cfg, layout.NewRuntime(xdg, "n")).Covers {
		found[c.Path] = c
	}
	return found
}

func TestCovers(t *testing.T) {
	home, xdg, open := t.TempDir(), t.TempDir(), t.TempDir()
	assert.NilError(t, os.Chmod(home, 0o700))
	assert.NilError(t, os.Chmod(xdg, 0o700))
	assert.NilError(t, os.Chmod(open, 0o755))
	l, err := net.Listen("unix", home+"/bus")
	assert.NilError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	t.Setenv("HOME", home)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "tcp:host=x,port=1;unix:guid=0,path="+home+"/bus")
	t.Setenv("SSH_AUTH_SOCK", home+"/none")
	cfg := config.Default()
	cfg.DataDir = home + "/data"

	covers := coversOf(xdg, cfg)
	for _, path := range []string{"/run/user", "/run/dbus", xdg} {
		assert.DeepEqual(t, covers[path].Keep[:2], []string{xdg + "/rootlessnode/n", home + "/data"})
	}
	_, bus := covers[home+"/bus"]
	assert.Assert(t, bus && len(covers) == 4, "%v", covers)
	for _, dir := range []string{open, home} { // shared with other users; the home directory
		_, covered := coversOf(dir, cfg)[dir]
		assert.Assert(t, !covered, dir)
	}
}
