package runtime

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
)

// TestDetectOCIRuntimes checks runtimes on PATH and in the configuration. gVisor needs its own shim.
func TestDetectOCIRuntimes(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	program := func(name string) string {
		path := filepath.Join(dir, name)
		assert.NilError(t, os.WriteFile(path, nil, 0o755))
		return path
	}
	c := config.Default()
	found, err := DetectOCIRuntimes(c)
	assert.NilError(t, err)
	assert.Equal(t, len(found), 0)

	crun, runsc := program("crun"), program("runsc")
	found, err = DetectOCIRuntimes(c)
	assert.NilError(t, err)
	assert.DeepEqual(t, found, map[string]component.OCIRuntime{"crun": {Path: crun}})

	shim := program("containerd-shim-runsc-v1")
	gvisor := component.OCIRuntime{Path: runsc, Shim: shim, ShimType: "io.containerd.runsc.v1"}
	mine := program("mine")
	c.Containerd.Runtimes = map[string]string{"fast": mine, "sandboxed": runsc}
	found, err = DetectOCIRuntimes(c)
	assert.NilError(t, err)
	assert.DeepEqual(t, found, map[string]component.OCIRuntime{"crun": {Path: crun}, "runsc": gvisor, "fast": {Path: mine}, "sandboxed": gvisor})

	c.Containerd.DetectRuntimes, c.Containerd.Runtimes = false, map[string]string{"gone": dir + "/gone"}
	_, err = DetectOCIRuntimes(c)
	assert.ErrorContains(t, err, "containerd.runtimes.gone")
	c.CRI.Runtime = config.RuntimeCRIO
	found, err = DetectOCIRuntimes(c)
	assert.NilError(t, err)
	assert.Equal(t, len(found), 0)
}
