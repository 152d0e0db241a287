package e2e

import (
	"fmt"
	"testing"
)

// TestEveryday starts one node with what users of a local cluster expect, uses it in parts, and runs the commands of the documentation.
// The node has a home directory of its own, because users put files there: preloaded images, addons, the kubeconfig.
func TestEveryday(t *testing.T) {
	t.Parallel()
	require(t)
	home := t.TempDir()
	n := newNode(t, "e2e-everyday", "--set", fmt.Sprintf("network.hostPorts=%d", everydayHostPort))
	n.env = append(n.env, "HOME="+home, "XDG_CONFIG_HOME=", "XDG_DATA_HOME=", "XDG_CACHE_HOME=", "KUBECONFIG=")
	private := startPrivateRegistry(t, home)
	n.args = append(append(n.args, private.flags()...), "--registry")
	n.preloadImages(home)
	n.up()
	n.importImage()
	parts := []struct {
		name string
		run  func(*testNode)
	}{
		{"kubeconfig", (*testNode).accountKubeconfig},
		{"autoscaling begins", (*testNode).autoscale},
		{"run", (*testNode).runOnHost},
		{"images", func(n *testNode) { n.useImages(private) }},
		{"shell", (*testNode).shellAndCompletion},
		{"resolver", (*testNode).resolver},
		{"docs", (*testNode).documentation},
		{"storage", (*testNode).storage},
		{"local registry", func(n *testNode) { n.pushToLocalRegistry(); n.pullFromLocalRegistry() }},
		{"crun", (*testNode).runWithCrun},
		{"device plugin", (*testNode).useDevicePlugin},
		{"registries", func(n *testNode) { n.usePrivateRegistry(private) }},
		{"metrics", (*testNode).metrics},
		{"addons", func(n *testNode) { n.addons(home) }},
		{"again", (*testNode).again}, // stops and starts the node
		{"storage after a restart", (*testNode).volumesAgain},
		{"local registry after a restart", (*testNode).pullFromLocalRegistry},
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { p.run(n.in(t)) })
	}
}
