package parent

import (
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
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// tapName is the node's uplink device; lxc-user-nic moves a veth in and calls it as other containers do.
const (
	tapName = "tap0"
	nicName = "eth0"
)

// lxcUserNICPaths are where distributions keep the set-uid helper, which is not meant to be on PATH.
func lxcUserNICPaths() []string {
	var paths []string
	for _, dir := range hostinfo.LXCDirs() {
		paths = append(paths, filepath.Join(dir, config.DriverLXCUserNIC))
	}
	return paths
}

// ResolveDriver returns the network driver that c means on this host: auto is the one that the port driver works with,
// where that needs a certain one; else slirp4netns where it is found on PATH, else gvisor-tap-vsock, which needs no
// program. Runs in: parent.
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
		d, err = r.slirpDriver(config.DriverSlirp, ipnet)
	case config.DriverGvisor:
		d, err = gvisortapvsock.NewParentDriver(r.LogWriter, n.MTU, ipnet, tapName, !n.AllowHostLoopback, n.IPv6)
	case config.DriverPasta:
		d, err = pasta.NewParentDriver(r.LogWriter, config.DriverPasta, n.MTU, ipnet, tapName,
			r.portSocket(config.PortsPesto), !n.AllowHostLoopback, n.IPv6, false)
		d = &adopting{ParentDriver: d, programs: []string{config.DriverPasta, "passt"}, log: r.Log}
	case config.DriverLXCUserNIC:
		d, err = lxcusernic.NewParentDriver(findProgram(config.DriverLXCUserNIC, lxcUserNICPaths()), n.MTU, n.LXCBridge, nicName)
	case config.DriverVPNKit:
		d = vpnkit.NewParentDriver(config.DriverVPNKit, n.MTU, tapName, !n.AllowHostLoopback)
	case config.DriverNone:
		d, err = newOffline(ipnet, n.MTU)
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
