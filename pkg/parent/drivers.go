package parent

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/gvisortapvsock"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/lxcusernic"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/pasta"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/slirp4netns"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/vpnkit"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/builtin"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// tapName is the node's uplink device; lxc-user-nic moves a veth in and calls it as other containers do.
const (
	tapName = "tap0"
	nicName = "eth0"
)

// lxcUserNIC is where distributions keep the set-uid helper, which is not meant to be on PATH.
var lxcUserNICPaths = []string{"/usr/lib/x86_64-linux-gnu/lxc/lxc-user-nic", "/usr/libexec/lxc/lxc-user-nic", "/usr/lib/lxc/lxc-user-nic"}

// ResolveDriver returns the network driver that name means on this host: auto is slirp4netns where it is found on PATH,
// else gvisor-tap-vsock, which needs no program. Runs in: parent.
func ResolveDriver(name string) string {
	if name != config.DriverAuto && name != "" {
		return name
	}
	if _, err := exec.LookPath(config.DriverSlirp); err == nil {
		return config.DriverSlirp
	}
	return config.DriverGvisor
}

// gvisorProgram is this program once more, with the gvisor-tap-vsock driver linked in. Our own build leaves the driver out
// of the main executable (RootlessKit's build tag no_gvisortapvsock): a debugging aid that it brings along fills tables
// when a program starts, at some 20 ms and 8 MB in each of a node's processes, whatever driver is used.
const gvisorProgram = "rootlessnode-gvisor"

// Executable returns the program that is to play the parent with a network driver: this one, unless the driver is not
// linked into it. Runs in: parent.
func Executable(driver, componentsDir string) (string, error) {
	if driver != config.DriverGvisor || gvisortapvsock.Available {
		return "/proc/self/exe", nil
	}
	path, err := exec.LookPath(filepath.Join(componentsDir, gvisorProgram))
	if err != nil {
		return "", errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("find the program with the %s driver: %w", driver, err)),
			"make build\n# or install slirp4netns, which network.driver: auto prefers")
	}
	return path, nil
}

// networkDriver makes RootlessKit's parent driver for the configured network. Config.Network.Driver is resolved.
func (r *run) networkDriver() (network.ParentDriver, error) {
	n := r.Config.Network
	_, ipnet, err := net.ParseCIDR(n.CIDR)
	if err != nil {
		return nil, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("network.cidr: %w", err))
	}
	var d network.ParentDriver
	switch n.Driver {
	case config.DriverSlirp:
		d, err = slirp4netns.NewParentDriver(r.LogWriter, config.DriverSlirp, n.MTU, ipnet, tapName, !n.AllowHostLoopback, "",
			n.SlirpSandbox, n.SlirpSeccomp, n.IPv6)
	case config.DriverGvisor:
		d, err = gvisortapvsock.NewParentDriver(r.LogWriter, n.MTU, ipnet, tapName, !n.AllowHostLoopback, n.IPv6)
	case config.DriverPasta:
		d, err = pasta.NewParentDriver(r.LogWriter, config.DriverPasta, n.MTU, ipnet, tapName,
			filepath.Join(r.Runtime.StateDir(), ".pasta.sock"), !n.AllowHostLoopback, n.IPv6, false)
	case config.DriverLXCUserNIC:
		d, err = lxcusernic.NewParentDriver(findProgram(config.DriverLXCUserNIC, lxcUserNICPaths), n.MTU, n.LXCBridge, nicName)
	case config.DriverVPNKit:
		d = vpnkit.NewParentDriver(config.DriverVPNKit, n.MTU, tapName, !n.AllowHostLoopback)
	default:
		err = fmt.Errorf("network driver %q is unknown", n.Driver)
	}
	if err != nil {
		return nil, errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("network driver %s: %w", n.Driver, err))
	}
	return d, nil
}

func findProgram(name string, places []string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, p := range places {
		if _, err := exec.LookPath(p); err == nil {
			return p
		}
	}
	return name
}

// portDriver makes RootlessKit's parent driver for forwarded ports; nil for none.
func (r *run) portDriver() (port.ParentDriver, error) {
	if r.Config.Ports.Driver == "none" {
		return nil, nil
	}
	d, err := builtin.NewParentDriver(r.LogWriter, r.Runtime.StateDir(), r.Config.Ports.SourceIPTransparent, "auto")
	if err != nil {
		return nil, fmt.Errorf("port driver builtin: %w", err)
	}
	return d, nil
}

// networkHook wraps a network driver to learn the child's pid and the network, and to do what must be done while the
// child still waits. RootlessKit has no callback for that; its drivers are interfaces.
type networkHook struct {
	network.ParentDriver
	after func(childPID int, n layout.NetworkInfo) error

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

// childPID is 0 as long as RootlessKit has not come to the network.
func (h *networkHook) childPID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.child
}
