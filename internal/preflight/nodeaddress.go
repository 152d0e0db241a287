package preflight

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/config"
)

// defaultRouteTarget is an address that no host has (RFC 5737), so that it is reached by the default route.
const defaultRouteTarget = "192.0.2.1:9"

// resolveLimit limits the time to resolve the name of a server.
const resolveLimit = 10 * time.Second

// NodeAddress returns the IPv4 address of this host at which the other nodes of a cluster reach this node. It is NodeIP if set.
// Otherwise it is the source address for connections to the API server that the node joins, or else the address on which the
// node's own API server listens, or else the source address of the default route. NodeAddress uses the kernel's routing table
// and, for a server given by name, the resolver. It sends nothing to the server. Runs in: parent.
func NodeAddress(ctx context.Context, c *config.NodeConfig) (netip.Addr, error) {
	if c.NodeIP != "" {
		ip, err := netip.ParseAddr(c.NodeIP)
		return ip.Unmap(), err
	}
	to, what := defaultRouteTarget, "the default route"
	if c.Join.Server != "" {
		server, err := config.ParseServer(c.Join.Server)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("find this host's address on the route to its API server: %w", err)
		}
		to = strings.TrimPrefix(server, "https://")
		what = to
	} else if ip, err := netip.ParseAddr(c.API.BindAddress); err == nil && c.Serves() && !ip.IsUnspecified() && ip.Unmap().Is4() {
		return ip.Unmap(), nil
	}
	d := net.Dialer{Timeout: resolveLimit}
	conn, err := d.DialContext(ctx, "udp4", to)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find this host's address on the route to %s: %w", what, err)
	}
	defer conn.Close()
	ip := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	if ip.IsLoopback() || ip.IsUnspecified() {
		return netip.Addr{}, fmt.Errorf("find this host's address on the route to %s: it is %s, which other hosts cannot reach", what, ip)
	}
	return ip, nil
}
