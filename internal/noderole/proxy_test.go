package noderole

import (
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/http/httpproxy"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
)

// TestProxyEnv checks that components use a proxy of the login for connections that leave the cluster, and only for them.
func TestProxyEnv(t *testing.T) {
	t.Setenv("https_proxy", "http://proxy.example:3128")
	t.Setenv("NO_PROXY", "intranet.example")
	cfg := testConfig()
	cfg.Network.IPv6 = true
	env := component.Env{Config: cfg, HostName: "workstation", NodeIP: "10.0.2.100", NodeIPv6: "fd00::100", PublicIP: "192.0.2.7"}
	got := map[string]string{}
	variables, err := proxyEnv(env)
	assert.NilError(t, err)
	for _, kv := range variables {
		k, v, _ := strings.Cut(kv, "=")
		got[k] = v
	}
	assert.Equal(t, got["NO_PROXY"], got["no_proxy"])
	assert.Equal(t, got["HTTPS_PROXY"], got["https_proxy"])
	proxy := (&httpproxy.Config{HTTPSProxy: got["HTTPS_PROXY"], NoProxy: got["NO_PROXY"]}).ProxyFunc()
	for host, used := range map[string]bool{
		"registry.k8s.io": true, "192.0.2.99": true, "docker.io:443": true,
		"10.0.2.100:10250": false, "10.42.3.4": false, "10.43.0.1": false, "[fd00:10:42::7]:443": false, "[fd00:10:43::1]": false,
		"[fd00::100]:10250": false, "192.0.2.7:10250": false, "webhook.default.svc": false, "web.default.svc.cluster.local": false,
		"kubernetes": false, "kubernetes.default": false, cfg.NodeName: false, "workstation": false, "localhost:6443": false, "127.0.0.1:6443": false,
		config.HostName: false, cfg.Network.HostAddress: false, "intranet.example": false,
	} {
		u, err := proxy(&url.URL{Scheme: "https", Host: host})
		assert.NilError(t, err)
		assert.Check(t, (u != nil) == used, "%s: proxy %v", host, u)
	}
	cfg.Join.Server = "https://control.example:6443"
	variables, err = proxyEnv(env)
	assert.NilError(t, err)
	assert.Assert(t, strings.Contains(strings.Join(variables, "\n"), ",control.example"))
}

// TestProxyWarnings checks that a proxy at the host's loopback is reported unless its port is one of network.hostPorts.
func TestProxyWarnings(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://localhost:3128")
	cfg := testConfig()
	assert.Equal(t, len(proxyWarnings(cfg)), 1)
	assert.Assert(t, strings.Contains(proxyWarnings(cfg)[0], "add 3128 to network.hostPorts"))
	cfg.Network.HostPorts = []int{3128}
	assert.Equal(t, len(proxyWarnings(cfg)), 0)
}

// TestLoopbackPorts checks that host ports are not opened at the loopback address if a component listens on the same port.
func TestLoopbackPorts(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Network.HostPorts = []int{5000, cfg.Inside.KubeletPort, cfg.Inside.EtcdClientPort, 3128}
	assert.DeepEqual(t, loopbackPorts(cfg), []int{5000, 3128})
}
