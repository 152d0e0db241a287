package containerd

import (
	"runtime"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/component/internal/fixture"
)

func TestRender(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]component.Env{"default": fixture.Env(), "poor": fixture.Poor()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := Render(env)
			assert.NilError(t, err)
			text := strings.ReplaceAll(fixture.Text(r), "linux/"+runtime.GOARCH, "linux/ARCHITECTURE")
			golden.Assert(t, text, name+".golden")
			var decoded map[string]any
			assert.NilError(t, toml.Unmarshal(fixture.File(r, "containerd.toml"), &decoded))
		})
	}
}

func TestRenderFuseOverlayfs(t *testing.T) {
	t.Parallel()
	r, err := RenderFuseOverlayfs(fixture.Poor())
	assert.NilError(t, err)
	golden.Assert(t, fixture.Text(r), "fuse-overlayfs.golden")

	_, err = RenderFuseOverlayfs(fixture.Env())
	assert.ErrorContains(t, err, "not known")
}

func TestRenderRefusesUndecidedSnapshotter(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.Snapshotter = "auto"
	_, err := Render(e)
	assert.ErrorContains(t, err, `unknown snapshotter "auto"`)
}
