package apiserver

import (
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

func TestRender(t *testing.T) {
	t.Parallel()
	fixture.Golden(t, Render)
}

func TestAuthenticationIsValid(t *testing.T) {
	t.Parallel()
	r, err := Render(fixture.Env())
	assert.NilError(t, err)
	var c apiserverv1.AuthenticationConfiguration
	assert.NilError(t, yaml.UnmarshalStrict(fixture.File(r, "authentication.yaml"), &c))
	assert.Equal(t, c.APIVersion, apiserverv1.SchemeGroupVersion.String())
	assert.Assert(t, c.Anonymous.Enabled)
	assert.Equal(t, len(c.Anonymous.Conditions), 3, "an empty list would allow anonymous requests to all paths")
}

func TestPodSecurityIsValid(t *testing.T) {
	t.Parallel()
	r, err := Render(fixture.Poor())
	assert.NilError(t, err)
	var c apiserverv1.AdmissionConfiguration
	assert.NilError(t, yaml.UnmarshalStrict(fixture.File(r, "admission.yaml"), &c))
	assert.Equal(t, c.APIVersion, apiserverv1.SchemeGroupVersion.String())
	assert.Equal(t, c.Plugins[0].Name, "PodSecurity")
	assert.Assert(t, slices.ContainsFunc(r.Args, func(arg string) bool {
		return strings.HasPrefix(arg, "--admission-control-config-file=") && strings.HasSuffix(arg, "admission.yaml")
	}), r.Args)
}

func TestHostURL(t *testing.T) {
	t.Parallel()
	for bind, want := range map[string]string{
		"127.0.0.1":   "https://127.0.0.1:7443",
		"0.0.0.0":     "https://127.0.0.1:7443",
		"::":          "https://127.0.0.1:7443",
		"192.0.2.7":   "https://192.0.2.7:7443",
		"2001:db8::1": "https://[2001:db8::1]:7443",
	} {
		e := fixture.Env()
		e.Config.API.BindAddress, e.Config.API.Port = bind, 7443
		assert.Equal(t, HostURL(e), want)
	}
}

// TestAliveIgnoresEtcdAndRoles checks that neither a slow or unavailable etcd nor missing default roles cause a
// restart, which would not help.
func TestAliveIgnoresEtcdAndRoles(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	assert.Equal(t, alive(e).URL, e.APIServerURL+"/livez?exclude=etcd&"+withoutBootstrap)
}
