package node

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// TestNames checks that nodes with a registry entry, with data in the default directory and with a runtime dir are found, and nothing else.
func TestNames(t *testing.T) {
	_, xdg := home(t)
	run := t.TempDir()
	assert.NilError(t, os.Chmod(run, 0o700))
	t.Setenv("XDG_RUNTIME_DIR", run)
	names, err := Names()
	assert.NilError(t, err)
	assert.Equal(t, len(names), 0)

	assert.NilError(t, datadir.Registry{XDGDataHome: xdg}.Put("moved", t.TempDir()))
	write(t, filepath.Join(layout.DefaultDataDir(xdg, "stopped"), "x"))
	write(t, layout.NewRuntime(run, "running").Config())
	write(t, layout.NewRuntime(run, "running").Lock())
	write(t, filepath.Join(layout.RegistryDir(xdg), "moved.json.tmp"))
	write(t, filepath.Join(layout.DefaultDataDir(xdg, "Not a name"), "x"))
	names, err = Names()
	assert.NilError(t, err)
	assert.DeepEqual(t, names, []string{"moved", "running", "stopped"})
}
