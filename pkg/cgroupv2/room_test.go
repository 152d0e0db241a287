package cgroupv2

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
)

func TestRooms(t *testing.T) {
	t.Parallel()
	mount := t.TempDir()
	dir := filepath.Join(mount, "a", "b")
	assert.NilError(t, os.MkdirAll(dir, 0o755))
	for file, text := range map[string]string{
		"a/pids.max": "100\n", "a/pids.current": "120\n", "a/memory.max": "max\n", "a/memory.current": "5\n",
		"a/b/pids.max": "max\n", "a/b/memory.max": "1000\n", "a/b/memory.current": "900\n", "a/b/memory.stat": "inactive_file 400\n",
	} {
		assert.NilError(t, os.WriteFile(filepath.Join(mount, file), []byte(text), 0o644))
	}
	none, reclaimable := uint64(0), uint64(500)
	assert.DeepEqual(t, Rooms(mount, dir), []Room{{Dir: dir, MemoryBytes: &reclaimable}, {Dir: filepath.Dir(dir), Tasks: &none}})
	assert.Equal(t, len(Rooms(mount, mount)), 0)
}
