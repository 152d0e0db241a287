package kubelet

import (
	"slices"
	"testing"

	"gotest.tools/v3/assert"
	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

// TestCredentialPlugin checks that the kubelet runs the program with its role for all registries, and not without the setting.
func TestCredentialPlugin(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	r, err := Render(e)
	assert.NilError(t, err)
	assert.Assert(t, !slices.ContainsFunc(r.Args, func(a string) bool { return a == "--image-credential-provider-bin-dir=/usr/bin" }))

	e.Credentials = &component.CredentialPlugin{Program: "/usr/bin/rootlessnode", RuntimeDir: "/run/user/1000/rootlessnode/default", Ports: []int{30500, 443}}
	r, err = Render(e)
	assert.NilError(t, err)
	assert.Assert(t, slices.Contains(r.Args, "--image-credential-provider-bin-dir=/usr/bin"), r.Args)
	assert.Assert(t, slices.Contains(r.Args, "--image-credential-provider-config=/run/rootlessnode/credential-provider.yaml"), r.Args)
	var c credentialConfig
	assert.NilError(t, yaml.UnmarshalStrict(fixture.File(r, "credential-provider.yaml"), &c))
	p := c.Providers[0]
	assert.Equal(t, p.Name, "rootlessnode")
	assert.DeepEqual(t, p.Env, []variableSet{
		{"_ROOTLESSNODE_ROLE", "credentials"}, {"_ROOTLESSNODE_RUNTIME_DIR", "/run/user/1000/rootlessnode/default"},
	})
	for _, pattern := range []string{"*", "*:5000", "*:30500", "*.*.*", "*.*.*.*:5443"} {
		assert.Assert(t, slices.Contains(p.MatchImages, pattern), pattern)
	}
	assert.Equal(t, len(slices.Compact(slices.Sorted(slices.Values(p.MatchImages)))), len(p.MatchImages), "no pattern twice")
}
