package preflight

import (
	"net/netip"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
)

// TestNodeAddress uses only addresses that every host has or that are given, because it cannot change the routes of the machine.
func TestNodeAddress(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		set  func(*config.NodeConfig)
		want string // an address, or else part of the error
	}{
		"given":                 {func(c *config.NodeConfig) { c.NodeIP, c.Join.Server = "192.0.2.9", "https://192.0.2.1:6443" }, "192.0.2.9"},
		"given as IPv6":         {func(c *config.NodeConfig) { c.NodeIP = "::ffff:192.0.2.9" }, "192.0.2.9"},
		"where its API listens": {func(c *config.NodeConfig) { c.API.BindAddress = "192.0.2.3" }, "192.0.2.3"},
		"a server on this host": {func(c *config.NodeConfig) { c.Join.Server = "https://127.0.0.1:6443" }, "on the route to 127.0.0.1:6443: it is 127.0.0.1, which other hosts"},
		"a server without port": {func(c *config.NodeConfig) { c.Join.Server = "https://127.0.0.1" }, "on the route to 127.0.0.1:6443: it is 127.0.0.1, which other hosts"},
		"an IPv6 server":        {func(c *config.NodeConfig) { c.Join.Server = "https://[2001:db8::1]:6443" }, "on the route to [2001:db8::1]:6443"},
		"no server":             {func(c *config.NodeConfig) { c.Join.Server = "127.0.0.1:6443" }, "must have the form https://HOST:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config.Default()
			tc.set(c)
			got, err := NodeAddress(t.Context(), c)
			if want, bad := netip.ParseAddr(tc.want); bad == nil {
				assert.NilError(t, err)
				assert.Equal(t, got, want)
				return
			}
			assert.ErrorContains(t, err, tc.want)
		})
	}
}
