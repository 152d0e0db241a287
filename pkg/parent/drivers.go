package parent

import (
	"cmp"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"

	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/gvisortapvsock"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/lxcusernic"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/pasta"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/vpnkit"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// tapName is the name of the node's uplink device. With lxc-user-nic, which moves a veth device into the namespace, it is nicName.
const (
	tapName = "tap0"
	nicName = "eth0"
)

// ResolveDriver returns the network driver for c on this host. It resolves auto to the driver that the port driver requires, if there
// is one; otherwise to slirp4netns if that is on PATH; otherwise to gvisor-tap-vsock, which needs no program on the host.
//
// Runs in: parent.
func ResolveDriver(c *config.NodeConfig) string {
	if d := c.Network.Driver; d != config.DriverAuto && d != "" {
		return d
	}
	if d := c.Ports.NeedsNetwork(); d != "" {
		return d
	}
	if _, err := exec.LookPath(config.DriverSlirp); err == nil {
		return config.DriverSlirp
	}
	return config.DriverGvisor
}

// gvisorProgram is a build of this program with the gvisor-tap-vsock driver. The main executable is built without the driver
// (RootlessKit's build tag no_gvisortapvsock), because a dependency of the driver initializes debugging tables at program start. That
// takes about 20 ms and 8 MB in each process of a node, even with other drivers.
const gvisorProgram = "rootlessnode-gvisor"

// Executable returns the path of the program that runs the parent role with the given network driver: this program, unless it is built
// without the driver.
//
// Errors: of class errdefs.ErrPreflight if the program with the driver is not found. Runs in: parent.
func Executable(driver, componentsDir string) (string, error) {
	if driver != config.DriverGvisor || gvisortapvsock.Available {
		return "/proc/self/exe", nil
	}
	path, err := exec.LookPath(filepath.Join(componentsDir, gvisorProgram))
	if err != nil {
		return "", errdefs.Preflight("find the program with the %s driver: %w", driver, err).
			Hint("make build\n# or install slirp4netns, which network.driver: auto uses if it is installed")
	}
	return path, nil
}

// networkDriver returns RootlessKit's parent driver for the configured network. Config.Network.Driver must be resolved.
func (r *run) networkDriver() (network.ParentDriver, error) {
	n := r.Config.Network
	_, ipnet, err := net.ParseCIDR(n.CIDR)
	if err != nil {
		return nil, errdefs.Config("network.cidr: %w", err)
	}
	var d network.ParentDriver
	switch n.Driver {
	case config.DriverSlirp:
		d, err = r.slirpDriver(config.DriverSlirp, ipnet)
	case config.DriverGvisor:
		d, err = gvisortapvsock.NewParentDriver(r.LogWriter, n.MTU, ipnet, tapName, !n.AllowHostLoopback, n.IPv6)
	case config.DriverPasta:
		d, err = pasta.NewParentDriver(r.LogWriter, config.DriverPasta, n.MTU, ipnet, tapName,
			r.portSocket(config.PortsPesto), !n.AllowHostLoopback, n.IPv6, false)
	case config.DriverLXCUserNIC:
		program := cmp.Or(findProgram(n.Driver, hostinfo.LXCDirs()), n.Driver) // distributions install it outside of PATH
		d, err = lxcusernic.NewParentDriver(program, n.MTU, n.LXCBridge, nicName)
	case config.DriverVPNKit:
		d = vpnkit.NewParentDriver(config.DriverVPNKit, n.MTU, tapName, !n.AllowHostLoopback)
	case config.DriverNone:
		d, err = newOffline(ipnet, n.MTU)
	default:
		err = fmt.Errorf("unknown network driver %q", n.Driver)
	}
	if err != nil {
		return nil, errdefs.Preflight("network driver %s: %w", n.Driver, err)
	}
	return d, nil
}

// uplink returns a wrapper for driver that starts its program again when it ends, or nil if the driver runs no program, or one that is
// only a helper.
func (r *run) uplink(driver network.ParentDriver) *uplink {
	u := &uplink{ParentDriver: driver, log: r.Log, out: r.LogWriter, report: r.writeNetworkFault}
	switch r.Config.Network.Driver {
	case config.DriverSlirp:
		u.programs = []string{config.DriverSlirp}
	case config.DriverPasta:
		u.programs, u.daemonizes = []string{config.DriverPasta, "passt"}, true
	default:
		return nil
	}
	u.restarts = r.Config.Ports.NeedsNetwork() == ""
	return u
}

// writeNetworkFault publishes the state of the network process for the node role.
func (r *run) writeNetworkFault(f layout.NetworkFault) {
	if err := layout.WriteJSON(r.Runtime.NetworkFault(), f); err != nil {
		r.Log.WithError(err).Warn("record the state of the network process")
	}
}

// findProgram returns the path of a program on PATH or in the first one of dirs that has it, or "".
func findProgram(name string, dirs []string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, dir := range dirs {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	return ""
}
