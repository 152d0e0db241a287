package parent

import (
	"fmt"
	"path/filepath"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/gvisortapvsock"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/pasta"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/slirp4netns"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
)

// resolvePorts returns the port driver for c on this host, and the reason for the choice. It resolves auto to builtin: this is the only
// driver that supports IPv6 with every network driver, and the fastest one that was measured (docs/network-drivers.md). The reason
// also says whether the program that preserves client addresses was found.
func resolvePorts(c *config.NodeConfig, find func(program string) string) (driver, why string) {
	if d := c.Ports.Driver; d != config.DriverAuto && d != "" {
		return d, "configured"
	}
	why = fmt.Sprintf("auto: works with every network driver, including %s", c.Network.Driver)
	if !c.Ports.SourceIPTransparent {
		return config.PortsBuiltin, why
	}
	for _, program := range []string{"nft", "iptables"} {
		if find(program) != "" {
			return config.PortsBuiltin, why + "; preserves the addresses of TCP clients with " + program
		}
	}
	return config.PortsBuiltin, why + "; cannot preserve the addresses of TCP clients: neither nft nor iptables found"
}

// findSystemProgram returns the path of a program on the search path that RootlessKit uses (see withSbin), or "".
func findSystemProgram(program string) string { return findProgram(program, hostinfo.SbinDirs()) }

// portSocket returns the socket on which the network driver's program receives ports, or "" if driver is not the port driver.
func (r *run) portSocket(driver string) string {
	switch {
	case r.Config.Ports.Driver != driver:
		return ""
	case driver == config.DriverSlirp:
		return filepath.Join(r.Runtime.StateDir(), ".s4nn.sock")
	}
	return filepath.Join(r.Runtime.StateDir(), ".pasta.sock")
}

// portDriver returns the parent driver for forwarded ports: a wrapper for builtin, RootlessKit's drivers otherwise, and nil for none.
// Config.Ports.Driver must be resolved.
func (r *run) portDriver() (port.ParentDriver, error) {
	var (
		d   port.ParentDriver
		err error
		p   = r.Config.Ports
	)
	switch p.Driver {
	case config.DriverNone:
		return nil, nil
	case config.PortsBuiltin:
		sources := portdriver.SourcesHidden
		switch {
		case p.SourceIPTransparent && catalogue.FiltersPackets(r.Config):
			sources = portdriver.SourcesKeptOrRefused
		case p.SourceIPTransparent:
			sources = portdriver.SourcesKept
		}
		d, err = portdriver.New(portdriver.Options{
			Log: r.LogWriter, StateDir: r.Runtime.StateDir(), Sources: sources, Inherited: r.Listeners,
			Essential: essentialPort(r.Config), OnFaults: r.forwarding.setFaults,
		})
	case config.DriverSlirp:
		d, err = slirp4netns.NewParentDriver(r.LogWriter, r.portSocket(p.Driver))
	case config.DriverGvisor:
		d, err = gvisortapvsock.NewParentDriver(r.LogWriter, r.Runtime.StateDir())
	case config.PortsPesto:
		d, err = pasta.NewParentDriver(r.LogWriter, config.PortsPesto, r.portSocket(p.Driver), r.Config.Network.IPv6)
	default:
		err = fmt.Errorf("unknown driver")
	}
	if err != nil {
		return nil, errdefs.Preflight("port driver %s: %w", p.Driver, err)
	}
	return d, nil
}

// essentialPort returns a function that reports whether a port is that of the API server or the kubelet. The port driver reserves
// descriptors for these ports, because other nodes need them.
func essentialPort(c *config.NodeConfig) func(port.Spec) bool {
	return func(s port.Spec) bool {
		api := c.ControlPlane.Embedded && s.ParentPort == c.API.Port && s.ParentIP == c.API.BindAddress && s.ChildPort == c.Inside.APIServerPort
		kubelet := c.MultiNode() && s.ParentPort == c.Inside.KubeletPort && s.ChildPort == c.Inside.KubeletPort
		return api || kubelet
	}
}
