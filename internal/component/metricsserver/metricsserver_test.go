package metricsserver

import (
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

func TestRender(t *testing.T) {
	t.Parallel()
	fixture.Golden(t, Render)
}

func TestManifest(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.ClusterCA = []byte("a certificate\n")
	data, err := Manifest(e)
	assert.NilError(t, err)
	golden.AssertBytes(t, data, "objects.golden")
	assert.Assert(t, strings.HasSuffix(string(Obsolete()), "port: 443\n"), "the Service is the last object, which marks the others as the node's")
}

func TestEnabled(t *testing.T) {
	t.Parallel()
	assert.Assert(t, enabled(fixture.Env().Config))
	assert.Assert(t, !enabled(fixture.Worker().Config), "the first node of the cluster has it")
	off := config.Default()
	off.Metrics.Enabled = false
	assert.Assert(t, !enabled(off))
}
