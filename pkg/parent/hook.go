package parent

import (
	"context"
	"net"
	"sync"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"

	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// networkHook wraps a network driver to learn the child's pid and the network, and to do what must be done while the
// child still waits. RootlessKit has no callback for that; its drivers are interfaces.
type networkHook struct {
	network.ParentDriver
	after func(childPID int, n layout.NetworkInfo) error
	// uplink is where the child writes its address down when the driver does not know it beforehand.
	uplink string

	mu    sync.Mutex
	child int
}

// ConfigureNetwork is RootlessKit's call, made once, when the child has its id map.
func (h *networkHook) ConfigureNetwork(childPID int, stateDir, netns string) (*messages.ParentInitNetworkDriverCompleted, func() error, error) {
	h.mu.Lock()
	h.child = childPID
	h.mu.Unlock()
	msg, cleanup, err := h.ParentDriver.ConfigureNetwork(childPID, stateDir, netns)
	if err != nil {
		return msg, cleanup, err
	}
	err = h.after(childPID, layout.NetworkInfo{
		Interface: msg.Dev, IP: msg.IP, PrefixLen: msg.Netmask, Gateway: msg.Gateway, DNS: msg.DNS, MTU: msg.MTU,
	})
	return msg, cleanup, err
}

// Info is what RootlessKit's API says of the network. An address that the child got by DHCP is in it: RootlessKit 3.3.0
// itself leaves it out, and whoever adds a port has to know it.
func (h *networkHook) Info(ctx context.Context) (*api.NetworkDriverInfo, error) {
	info, err := h.ParentDriver.Info(ctx)
	if err != nil || info.ChildIP != nil {
		return info, err
	}
	var n layout.NetworkInfo
	if layout.ReadJSON(h.uplink, &n) != nil { // not there yet
		return info, nil
	}
	known := *info
	known.ChildIP = net.ParseIP(n.IP)
	for _, s := range n.DNS {
		known.DNS = append(known.DNS, net.ParseIP(s))
	}
	return &known, nil
}

// childPID is 0 as long as RootlessKit has not come to the network.
func (h *networkHook) childPID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.child
}
