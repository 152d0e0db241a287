package parent

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// networkHook wraps a network driver to get the child's pid and the network settings, and calls after while the child still waits for
// the parent. RootlessKit has no callback for this.
type networkHook struct {
	network.ParentDriver
	name  string
	after func(childPID int, n layout.NetworkInfo) error
	// uplink is the file where the child records its address if the driver uses DHCP.
	uplink string

	mu    sync.Mutex
	child int
	// stopped is set if the node must not start any more.
	stopped bool
	// handle refers to the child, also after RootlessKit has reaped it.
	handle proc.Handle
}

// ConfigureNetwork implements network.ParentDriver. RootlessKit calls it once, after it has written the child's id map.
func (h *networkHook) ConfigureNetwork(childPID int, stateDir, netns string) (*messages.ParentInitNetworkDriverCompleted, func() error, error) {
	handle, err := proc.Open(childPID)
	if err != nil {
		return nil, nil, err
	}
	h.mu.Lock()
	h.child, h.handle = childPID, handle
	stopped := h.stopped
	h.mu.Unlock()
	if stopped {
		return nil, nil, errors.Join(errStopped, handle.Signal(unix.SIGKILL)) // RootlessKit does not end the child
	}
	layout.DropPrivateEnv() // the child has started, and the network program must not have its role
	msg, cleanup, err := h.ParentDriver.ConfigureNetwork(childPID, stateDir, netns)
	if err != nil {
		return msg, cleanup, err
	}
	err = h.after(childPID, layout.NetworkInfo{
		Interface: msg.Dev, IP: msg.IP, PrefixLen: msg.Netmask, Gateway: msg.Gateway, DNS: msg.DNS, MTU: msg.MTU,
	})
	return msg, cleanup, err
}

// Info implements network.ParentDriver for RootlessKit's API. It adds an address that the child got by DHCP, which RootlessKit 3.3.0
// leaves out, because clients that add ports need it.
func (h *networkHook) Info(ctx context.Context) (*api.NetworkDriverInfo, error) {
	info, err := h.ParentDriver.Info(ctx)
	if err != nil || info.ChildIP != nil {
		return info, err
	}
	var n layout.NetworkInfo
	if layout.ReadJSON(h.uplink, &n) != nil { // no address yet
		return info, nil
	}
	known := *info
	known.ChildIP = net.ParseIP(n.IP)
	for _, s := range n.DNS {
		known.DNS = append(known.DNS, net.ParseIP(s))
	}
	return &known, nil
}

// String returns the name of the driver. RootlessKit prints the driver in its errors.
func (h *networkHook) String() string { return "driver " + h.name }

// errStopped is the error of a start during which the node was stopped.
var errStopped = errors.New("the node is stopped")

// refuse makes the start fail if RootlessKit has not configured the network yet. It returns the pid of the child otherwise.
func (h *networkHook) refuse() (childPID int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	return h.child
}

// childPID returns the pid of the child, or 0 before RootlessKit configures the network.
func (h *networkHook) childPID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.child
}

// signal sends a signal to the child. It does nothing if there is no child yet, or if the child has ended.
func (h *networkHook) signal(sig unix.Signal) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.child == 0 {
		return nil
	}
	return h.handle.Signal(sig)
}
