package controllermanager

import (
	"testing"

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
			golden.Assert(t, fixture.Text(r), name+".golden")
		})
	}
}
