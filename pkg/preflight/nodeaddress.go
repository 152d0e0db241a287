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

// farAway is an address that no host has (RFC 5737): the way there is the default route.
const farAway = "192.0.2.1:9"

// resolveLimit is how long the resolver may take for the name of a server.
const resolveLimit = 10 * time.Second

// NodeAddress is the IPv4 address of the host by which other nodes reach the node of a cluster with others: NodeIP, else the
// one from which the host reaches the API server that it joins, else the one that its own API server listens on, else that
// of the default route. It asks the kernel's routes and, for a server given by name, the resolver; nothing is sent to the
// address that it finds.
//
// Its error says what is missing. Runs in: parent.
func NodeAddress(ctx context.Context, c *config.NodeConfig) (netip.Addr, error) {
	if c.NodeIP != "" {
		ip, err := netip.ParseAddr(c.NodeIP)
		return ip.Unmap(), err
	}
	to, what := farAway, "the default route"
	if c.Join.Server != "" {
		server, err := config.ParseServer(c.Join.Server)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("find the address of this host towards its API server: %w", err)
		}
		to = strings.TrimPrefix(server, "https://")
		what = to
	} else if ip, err := netip.ParseAddr(c.API.BindAddress); err == nil && c.Serves() && !ip.IsUnspecified() && ip.Unmap().Is4() {
		return ip.Unmap(), nil
	}
	d := net.Dialer{Timeout: resolveLimit}
	conn, err := d.DialContext(ctx, "udp4", to)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find the address of this host towards %s: %w", what, err)
	}
	defer conn.Close()
	ip := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	if ip.IsLoopback() || ip.IsUnspecified() {
		return netip.Addr{}, fmt.Errorf("find the address of this host towards %s: it is %s, which others cannot reach", what, ip)
	}
	return ip, nil
}
