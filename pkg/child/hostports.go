package child

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/rootlessnode/rootlessnode/pkg/hostport"
)

// hostAddress gives the node the address that stands for the host. It is there whatever may be reached at it, so that
// config.HostName always resolves to something that answers or refuses at once.
func (n *nodeRole) hostAddress() error {
	ip, err := netip.ParseAddr(n.cfg.Network.HostAddress)
	if err != nil {
		return fmt.Errorf("network.hostAddress: %w", err)
	}
	return hostport.EnsureAddress(ip)
}

// relayHostPorts serves network.hostPorts inside. The parent, which has the same list, makes the connections.
func (n *nodeRole) relayHostPorts(ctx context.Context, ready func()) error {
	ip, err := netip.ParseAddr(n.cfg.Network.HostAddress)
	if err != nil {
		return fmt.Errorf("network.hostAddress: %w", err)
	}
	return hostport.Relay(ctx, hostport.RelayOptions{
		Address: ip, Ports: n.cfg.Network.HostPorts, Socket: n.rt.HostSocket(), Log: n.log,
	}, ready)
}
