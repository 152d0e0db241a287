package noderole

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

func TestUnenforcedTexts(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	assert.Equal(t, len(unenforcedTexts(cfg, layout.CgroupInfo{})), 0)
	cfg.Resources.Memory, cfg.Resources.Pids = "4Gi", 4096
	c := layout.CgroupInfo{Unenforced: []string{"memory"}, Refused: map[string]string{
		"memory": "no such file or directory", "pids": "permission denied",
	}}
	assert.DeepEqual(t, unenforcedSettings(cfg, c), []string{"resources.memory", "resources.pids"})
	assert.DeepEqual(t, unenforcedTexts(cfg, c), []string{
		"cgroup controllers [memory] are not delegated: pod limits that need them are accepted but not enforced",
		"not enforced on this node: resources.memory, resources.pids; the kernel rejects resources.pids: permission denied",
	})
}

func TestRemoveManagerState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	assert.NilError(t, removeManagerState(dir), "the first run has no files")
	for _, f := range []string{"cpu_manager_state", "memory_manager_state", "other"} {
		assert.NilError(t, os.WriteFile(filepath.Join(dir, f), nil, 0o600))
	}
	assert.NilError(t, removeManagerState(dir))
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	assert.NilError(t, err)
	assert.DeepEqual(t, left, []string{filepath.Join(dir, "other")})
}
