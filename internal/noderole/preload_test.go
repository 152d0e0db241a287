package noderole

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
)

// TestPreloadedArchives checks which files of the directory are archives, and that other files and a missing directory cause no warnings.
func TestPreloadedArchives(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a.tar", "b.tar.gz", "c.tgz", "d.tar.zst", "README", "e.txt", ".f.tar", "g.gz"} {
		assert.NilError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	assert.NilError(t, os.Mkdir(filepath.Join(dir, "h.tar"), 0o700))
	assert.NilError(t, os.Symlink("a.tar", filepath.Join(dir, "i.tar")))
	cfg := config.Default()
	var warnings []string
	n := &imageImporter{cfg: cfg, runtime: runtime.Of(cfg), warn: func(texts ...string) { warnings = append(warnings, texts...) }}
	assert.Equal(t, len(n.archives()), 0)
	cfg.PreloadDir = filepath.Join(dir, "missing")
	assert.Equal(t, len(n.archives()), 0)
	cfg.PreloadDir = dir
	var names []string
	for _, info := range n.archives() {
		names = append(names, info.Name())
	}
	assert.DeepEqual(t, names, []string{"a.tar", "b.tar.gz", "c.tgz", "d.tar.zst", "i.tar"})
	assert.Equal(t, len(warnings), 0)

	assert.NilError(t, os.Symlink("missing", filepath.Join(dir, "j.tar")))
	assert.Equal(t, len(n.archives()), 5)
	assert.Equal(t, len(warnings), 1, "a file that cannot be read is a warning")

	cfg.CRI.Runtime = config.RuntimeCRIO
	n.runtime = runtime.Of(cfg)
	assert.Equal(t, len(n.preload(t.Context(), nil, nil)), 0)
	assert.Equal(t, len(warnings), 3, "CRI-O cannot import archives")
}
