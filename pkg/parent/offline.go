package parent

import (
	"context"
	"fmt"
	"net"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/iputils"

	"github.com/rootlessnode/rootlessnode/config"
)

// offline is a network driver without an uplink. RootlessKit's driver "none" provides only a loopback device, but a node needs an
// address and a default route. Therefore the child creates a device (pkg/child), and this driver gives it the addresses that
// slirp4netns would use.
type offline struct {
	msg messages.ParentInitNetworkDriverCompleted
}

var _ network.ParentDriver = (*offline)(nil)

// The numbers of the node's and the gateway's address in the network, as with slirp4netns.
const offlineNode, offlineGateway = 100, 2

func newOffline(ipnet *net.IPNet, mtu int) (*offline, error) {
	node, err := iputils.AddIPInt(ipnet.IP, offlineNode)
	if err != nil {
		return nil, fmt.Errorf("network.cidr: %w", err)
	}
	gateway, err := iputils.AddIPInt(ipnet.IP, offlineGateway)
	if err != nil {
		return nil, fmt.Errorf("network.cidr: %w", err)
	}
	ones, _ := ipnet.Mask.Size()
	return &offline{messages.ParentInitNetworkDriverCompleted{
		Dev: tapName, IP: node.String(), Netmask: ones, Gateway: gateway.String(), MTU: mtu,
	}}, nil
}

func (d *offline) Info(context.Context) (*api.NetworkDriverInfo, error) {
	return &api.NetworkDriverInfo{Driver: config.DriverNone, ChildIP: net.ParseIP(d.msg.IP)}, nil
}

func (d *offline) MTU() int { return d.msg.MTU }

func (d *offline) ConfigureNetwork(int, string, string) (*messages.ParentInitNetworkDriverCompleted, func() error, error) {
	msg := d.msg
	return &msg, func() error { return nil }, nil
}
