package containerd

import (
	"runtime"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

func TestRender(t *testing.T) {
	t.Parallel()
	fixture.Golden(t, Render, func(text string) string {
		return strings.ReplaceAll(text, "linux/"+runtime.GOARCH, "linux/ARCHITECTURE")
	})
}

func TestConfigIsTOML(t *testing.T) {
	t.Parallel()
	for _, e := range []component.Env{fixture.Env(), fixture.Poor()} {
		r, err := Render(e)
		assert.NilError(t, err)
		var decoded map[string]any
		assert.NilError(t, toml.Unmarshal(fixture.File(r, "containerd.toml"), &decoded))
	}
}

func TestRenderFuseOverlayfs(t *testing.T) {
	t.Parallel()
	r, err := RenderFuseOverlayfs(fixture.Poor())
	assert.NilError(t, err)
	golden.Assert(t, fixture.Text(r), "fuse-overlayfs.golden")

	_, err = RenderFuseOverlayfs(fixture.Env())
	assert.ErrorContains(t, err, "is not set")
}

func TestRenderRefusesUndecidedSnapshotter(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.Snapshotter = "auto"
	_, err := Render(e)
	assert.ErrorContains(t, err, `unknown snapshotter "auto"`)
}

// TestOCIRuntimes checks the entries of further OCI runtimes. They always use rootlessnode's shim, or their own.
func TestOCIRuntimes(t *testing.T) {
	t.Parallel()
	for _, e := range []component.Env{fixture.Env(), fixture.Poor()} {
		e.OCIRuntimes = map[string]component.OCIRuntime{
			"crun": {Path: "/usr/bin/crun"}, "runsc": {Path: "/usr/bin/runsc", Shim: "/usr/bin/shim", ShimType: "io.containerd.runsc.v1"},
		}
		runtimes := ociRuntimes(e)
		assert.Equal(t, runtimes["runsc"].Path, "/usr/bin/shim")
		assert.Assert(t, runtimes["runsc"].Options == nil)
		assert.Equal(t, runtimes["crun"].Options.BinaryName, "/run/rootlessnode/oci/crun")
		assert.Equal(t, runtimes["runc"].Options.BinaryName, e.OCIRuntime)
	}
}
