package noderole

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostport"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// relayHostPorts listens on network.hostPorts inside the node. The parent has the same list and makes the connections
// on the host.
func relayHostPorts(ctx context.Context, cfg *config.NodeConfig, rt layout.Runtime, log logrus.FieldLogger, ready func()) error {
	ip, err := netip.ParseAddr(cfg.Network.HostAddress)
	if err != nil {
		return fmt.Errorf("network.hostAddress: %w", err)
	}
	return hostport.Relay(ctx, hostport.RelayOptions{
		Address: ip, Ports: cfg.Network.HostPorts, Socket: rt.HostSocket(), Log: log,
	}, ready)
}
