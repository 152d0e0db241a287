package storage

import (
	"testing"

	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

func TestRender(t *testing.T) {
	t.Parallel()
	fixture.Golden(t, Render)
}

func TestRenderInACluster(t *testing.T) {
	t.Parallel()
	fixture.GoldenCluster(t, Render)
}
