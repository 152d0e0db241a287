package localregistry

import (
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

func TestRender(t *testing.T) {
	t.Parallel()
	fixture.Golden(t, Render)
}

func TestManifest(t *testing.T) {
	t.Parallel()
	data, err := Manifest(fixture.Env())
	assert.NilError(t, err)
	golden.Assert(t, string(data), "manifest.golden")
}
