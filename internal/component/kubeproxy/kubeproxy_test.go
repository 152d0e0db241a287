package kubeproxy

import (
	"testing"

	"gotest.tools/v3/assert"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/internal/component"
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

func TestConfigIsValid(t *testing.T) {
	t.Parallel()
	for _, e := range []component.Env{fixture.Env(), fixture.Poor()} {
		r, err := Render(e)
		assert.NilError(t, err)
		var c proxyv1alpha1.KubeProxyConfiguration
		assert.NilError(t, yaml.UnmarshalStrict(fixture.File(r, "kube-proxy.yaml"), &c))
		assert.Equal(t, c.APIVersion, proxyv1alpha1.SchemeGroupVersion.String())
		assert.Equal(t, *c.Conntrack.MaxPerCore, int32(0), "the default is a limit that cannot be set")
		assert.Equal(t, *c.OOMScoreAdj, int32(0))
		assert.Equal(t, len(c.NodePortAddresses), 0)
	}
}

func TestRenderRefusesUndecidedMode(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.KubeProxyMode = "auto"
	_, err := Render(e)
	assert.ErrorContains(t, err, `mode "auto"`)
}
