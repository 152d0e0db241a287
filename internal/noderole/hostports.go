package noderole

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/rootlessnode/rootlessnode/internal/hostport"
)

// hostAddress adds the address that stands for the host to the node. The address always exists, so that a connection to
// config.HostName is always accepted or refused at once.
func (n *nodeRole) hostAddress() error {
	ip, err := netip.ParseAddr(n.cfg.Network.HostAddress)
	if err != nil {
		return fmt.Errorf("network.hostAddress: %w", err)
	}
	return hostport.EnsureAddress(ip)
}

// relayHostPorts listens on network.hostPorts inside the node. The parent has the same list and makes the connections
// on the host.
func (n *nodeRole) relayHostPorts(ctx context.Context, ready func()) error {
	ip, err := netip.ParseAddr(n.cfg.Network.HostAddress)
	if err != nil {
		return fmt.Errorf("network.hostAddress: %w", err)
	}
	return hostport.Relay(ctx, hostport.RelayOptions{
		Address: ip, Ports: n.cfg.Network.HostPorts, Socket: n.rt.HostSocket(), Log: n.log,
	}, ready)
}
