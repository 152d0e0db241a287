package config

import (
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

func TestParseServer(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"https://192.0.2.1:6443": "https://192.0.2.1:6443", "https://a.example": "https://a.example:6443",
		"https://[2001:db8::1]": "https://[2001:db8::1]:6443", "https://a.example:1/": "https://a.example:1",
		"http://a": "", "https://": "", "a.example:6443": "", "https://u:p@a": "", "https://a/b": "", "https://a?b": "", "https://a#b": "",
	} {
		got, err := ParseServer(in)
		assert.Equal(t, got, want, in)
		assert.Equal(t, err == nil, want != "", in)
	}
}

// joining returns a complete config with these changes.
func joining(t *testing.T, set map[string]string) *NodeConfig {
	t.Helper()
	c := Default()
	for path, v := range set {
		assert.NilError(t, c.Set(path, v))
	}
	c.Complete(HostFacts{Hostname: "h", XDGDataHome: "/d"})
	return c
}

func TestWorkerAndServer(t *testing.T) {
	t.Parallel()
	c := joining(t, nil)
	assert.Assert(t, !c.Joins() && !c.Serves() && !c.MultiNode())
	c = joining(t, map[string]string{"join.server": "https://a.example:6443"})
	assert.NilError(t, c.Validate())
	assert.Assert(t, c.Joins() && c.MultiNode() && !c.Serves() && !c.ControlPlane.Embedded)
	c = joining(t, map[string]string{"api.bindAddress": "192.0.2.1", "api.port": "7443"})
	assert.NilError(t, c.Validate())
	assert.Assert(t, c.Serves() && c.MultiNode() && !c.Joins())
	assert.Equal(t, c.Inside.APIServerPort, 7443)
	for _, bind := range []string{"192.0.2.1", "0.0.0.0", "127.0.0.1"} {
		assert.NilError(t, joining(t, map[string]string{"nodeIP": "192.0.2.1", "api.bindAddress": bind}).Validate())
	}
}

func TestValidateJoin(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		set  map[string]string
		want []string
	}{
		{map[string]string{"join.server": "ftp://a", "join.caCertHashes": "sha256:12"}, []string{"join.server: ", "join.caCertHashes[0]: "}},
		{map[string]string{"join.server": "https://a", "join.kubeconfig": "/k"}, []string{"join.kubeconfig: cannot be combined with join.server"}},
		{map[string]string{"join.kubeconfig": "k"}, []string{"join.kubeconfig: "}},
		{map[string]string{"join.kubeconfig": "/k", "join.caCertHashes": "sha256:" + strings.Repeat("a", 64)}, []string{"join.caCertHashes: requires join.server"}},
		{map[string]string{"controlPlane.embedded": "false"}, []string{"controlPlane.embedded: "}},
		{map[string]string{"join.server": "https://a", "flannel.backend": "host-gw", "ports.driver": "none", "network.driver": "none", "network.ipv6": "true"},
			[]string{"flannel.backend: host-gw: not supported", "ports.driver: none", "network.driver: none", "network.ipv6: not supported"}},
		{map[string]string{"join.server": "https://a", "podSecurity": "baseline"}, []string{"podSecurity: baseline has no effect on a worker"}},
		{map[string]string{"controlPlane.apiServerExtraArgs": "--admission-control-config-file=/x", "podSecurity": "baseline"},
			[]string{"controlPlane.apiServerExtraArgs[0]: --admission-control-config-file replaces the file"}},
		{map[string]string{"api.bindAddress": "2001:db8::1"}, []string{"api.bindAddress: 2001:db8::1: must be an IPv4 address"}},
		{map[string]string{"nodeIP": "10.0.2.100"}, []string{"nodeIP: 10.0.2.100 is in network.cidr"}},
		{map[string]string{"nodeIP": "127.0.0.1"}, []string{"nodeIP: "}},
		{map[string]string{"nodeIP": "::1"}, []string{"nodeIP: "}},
		{map[string]string{"nodeIP": "192.0.2.2", "api.bindAddress": "192.0.2.1"}, []string{"nodeIP: 192.0.2.2: pods of other nodes reach the API server"}},
	} {
		err := joining(t, tc.set).Validate()
		for _, want := range tc.want {
			assert.ErrorContains(t, err, want)
		}
	}
}
