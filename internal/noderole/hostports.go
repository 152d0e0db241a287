package noderole

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/hostport"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// relayHostPorts listens on the ports of config.HostPorts inside the node. The parent has the same list and makes the connections
// on the host.
func relayHostPorts(ctx context.Context, cfg *config.NodeConfig, rt layout.Runtime, log logrus.FieldLogger, ready func()) error {
	ip, err := netip.ParseAddr(cfg.Network.HostAddress)
	if err != nil {
		return fmt.Errorf("network.hostAddress: %w", err)
	}
	return hostport.Relay(ctx, hostport.RelayOptions{
		Address: ip, Ports: cfg.HostPorts(), Loopback: loopbackPorts(cfg), Socket: rt.HostSocket(), Log: log,
	}, ready)
}

// loopbackPorts returns those of config.HostPorts on which no component listens inside.
func loopbackPorts(cfg *config.NodeConfig) []int {
	return slices.DeleteFunc(cfg.HostPorts(), func(port int) bool {
		return slices.ContainsFunc(catalogue.Enabled(cfg), func(c component.Component) bool {
			return c.Ports != nil && slices.ContainsFunc(c.Ports(cfg), func(p component.Port) bool { return p.Number == port })
		})
	})
}
