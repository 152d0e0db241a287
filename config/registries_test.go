package config

import (
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

func TestRegistriesMerge(t *testing.T) {
	t.Parallel()
	c, err := LoadBytes([]byte(head+"registries: {docker.io: {mirrors: [https://m.example]}, a.example: }"), "f")
	assert.NilError(t, err)
	assert.NilError(t, c.Set("registries.localhost:5443", "{caFile: /ca.crt}"))
	assert.DeepEqual(t, c.Registries, map[string]Registry{
		"docker.io": {Mirrors: []string{"https://m.example"}}, "a.example": {}, "localhost:5443": {CAFile: "/ca.crt"},
	})
	assert.ErrorContains(t, c.Set("registries.docker.io.mirrors", "[https://m.example]"), "must be a mapping of fields")
	assert.ErrorContains(t, c.Set("registries.docker.io", "{mirors: []}"), "mirors: unknown field, did you mean mirrors?")
	_, err = LoadBytes([]byte(head+"registries: {docker.io: {mirror: [x], insecure: 1}, b.example: [x]}"), "f")
	assert.DeepEqual(t, strings.Split(err.Error(), "\n"), []string{
		"f: registries.b.example: must be a mapping of fields, got [\"x\"]",
		"f: registries.docker.io.insecure: must be true or false, got 1",
		"f: registries.docker.io.mirror: unknown field, did you mean registries.docker.io.mirrors?",
	})
}

func TestValidateRegistries(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, value, want string }{
		{"docker.io", "{mirrors: [https://m.example/hub, 'http://localhost:5000']}", ""},
		{"*", "{mirrors: ['https://[fd00::1]:5000/v2/x'], skipVerify: true}", ""},
		{"[fd00::1]:5000", "{}", ""},
		{"localhost", "{insecure: true}", ""},
		{"myregistry:5000", "{caFile: /home/u/ca.crt, certFile: /c, keyFile: /k}", ""},
		{"index.docker.io", "{}", "registries.index.docker.io: use docker.io, the name of this registry in image references"},
		{"myregistry", "{}", "must contain a dot or a port"},
		{"https://a.example", "{}", "must be HOST or HOST:PORT"},
		{"a.example/team", "{}", "must be HOST or HOST:PORT"},
		{"A.example", "{}", "must be HOST or HOST:PORT"},
		{"a.example:", "{}", "must be HOST or HOST:PORT"},
		{"a.example:65536", "{}", "the port must be between 1 and 65535"},
		{"a.example", "{mirrors: [m.example]}", `registries.a.example.mirrors[0]: "m.example": must be a URL`},
		{"a.example", "{mirrors: ['https://u:p@m.example']}", "log in with docker or podman instead"},
		{"a.example", "{mirrors: ['https://m.example/?x']}", "must not have a query"},
		{"a.example", "{mirrors: ['https://m.example:0']}", "the port must be between 1 and 65535"},
		{"a.example", "{mirrorsOnly: true}", "registries.a.example.mirrorsOnly: needs mirrors"},
		{"a.example", "{certFile: /c}", "certFile and keyFile must be set together"},
		{"a.example", "{caFile: ca.crt}", "must be an absolute path"},
		{"a.example", "{caFile: /etc/containers/certs.d/a/ca.crt}", "not visible inside the node, which has its own /etc/containers"},
		{"a.example", "{insecure: true, caFile: /c}", "have no effect without TLS"},
		{"*", "{insecure: true}", "must be set for each registry"},
		{"a.example", "{skipVerify: true, caFile: /c}", "caFile has no effect"},
	} {
		c := complete()
		assert.NilError(t, c.Set("registries."+tc.name, tc.value))
		err := c.Validate()
		if tc.want == "" {
			assert.NilError(t, err, tc.name)
			continue
		}
		assert.ErrorContains(t, err, tc.want)
	}
	c := complete()
	c.Registries, c.Containerd.RegistryConfigDir = map[string]Registry{"a.example": {}}, "/x"
	assert.ErrorContains(t, c.Validate(), "cannot be used together with containerd.registryConfigDir")
	c.Containerd.RegistryConfigDir, c.CRI.Runtime = "", RuntimeCRIO
	assert.Error(t, c.Validate(), "registries: has no effect with cri.runtime crio")
}

func TestMirrorImage(t *testing.T) {
	t.Parallel()
	for mirror, want := range map[string]string{
		"https://m.example": "m.example/a/b", "https://m.example:5000/": "m.example:5000/a/b", "http://m.example/hub/x": "m.example/hub/x/a/b",
		"https://m.example/v2": "m.example/a/b", "https://m.example/v2/hub": "m.example/hub/a/b", "https://m.example/api/hub/v2/": "m.example/a/b",
	} {
		assert.Equal(t, MirrorImage(mirror, "a/b"), want, mirror)
	}
}

// TestHostPortsOfRegistries checks which ports of the host's loopback registries open.
func TestHostPortsOfRegistries(t *testing.T) {
	t.Parallel()
	c := complete()
	c.Network.HostPorts = []int{5432, 5000}
	c.Registries = map[string]Registry{
		"localhost:5443":                {},
		"127.0.0.1:5000":                {},
		"docker.io":                     {Mirrors: []string{"http://host.rootlessnode.internal:5001/x", "http://localhost"}},
		"host.rootlessnode.internal:77": {Mirrors: []string{"https://127.0.0.1"}, MirrorsOnly: true},
		"a.example:5444":                {},
	}
	assert.DeepEqual(t, c.HostPorts(), []int{5432, 5000, 5001, 80, 443, 5443})
	assert.DeepEqual(t, c.RegistryPorts(), []int{77, 5000, 5443, 5444})
	assert.DeepEqual(t, c.Network.HostPorts, []int{5432, 5000})
	c.LocalRegistry.Enabled, c.LocalRegistry.Port, c.Network.HostPorts = true, 5001, nil // inside, not on the host
	assert.DeepEqual(t, c.HostPorts(), []int{5000, 80, 443, 5443})
	assert.DeepEqual(t, c.RegistryPorts(), []int{77, 5000, 5001, 5443, 5444})
}
