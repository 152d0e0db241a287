package parent

import (
	"fmt"
	"path/filepath"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/gvisortapvsock"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/pasta"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/slirp4netns"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
)

// resolvePorts returns the port driver that c means on this host, and why. Auto is builtin with every network: it is the
// only driver that has IPv6 with all of them, and of those measured the fastest (docs/network-drivers.md). What a host
// may lack is the program by which it keeps the clients' addresses; that is said.
func resolvePorts(c *config.NodeConfig, find func(program string) string) (driver, why string) {
	if d := c.Ports.Driver; d != config.DriverAuto && d != "" {
		return d, "asked for"
	}
	why = fmt.Sprintf("auto: works with every network driver, %s here", c.Network.Driver)
	if !c.Ports.SourceIPTransparent {
		return config.PortsBuiltin, why
	}
	for _, program := range []string{"nft", "iptables"} {
		if find(program) != "" {
			return config.PortsBuiltin, why + "; keeps the addresses of TCP clients by " + program
		}
	}
	return config.PortsBuiltin, why + "; neither nft nor iptables is found to keep the addresses of TCP clients"
}

// findSystemProgram looks where withSbin lets RootlessKit look.
func findSystemProgram(program string) string {
	var places []string
	for _, dir := range hostinfo.SbinDirs() {
		places = append(places, filepath.Join(dir, program))
	}
	if p := findProgram(program, places); p != program {
		return p
	}
	return ""
}

// portSocket is where the network's program is told of ports, if driver is the port driver; else "", and it is not.
func (r *run) portSocket(driver string) string {
	switch {
	case r.Config.Ports.Driver != driver:
		return ""
	case driver == config.DriverSlirp:
		return filepath.Join(r.Runtime.StateDir(), ".s4nn.sock")
	}
	return filepath.Join(r.Runtime.StateDir(), ".pasta.sock")
}

// portDriver makes the parent driver for forwarded ports, RootlessKit's but for builtin, which is wrapped; nil for none.
// Config.Ports.Driver is resolved.
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
		case p.SourceIPTransparent && r.Config.EnforcesPolicies():
			sources = portdriver.SourcesKeptOrRefused
		case p.SourceIPTransparent:
			sources = portdriver.SourcesKept
		}
		d, err = portdriver.New(portdriver.Options{
			Log: r.LogWriter, StateDir: r.Runtime.StateDir(), Sources: sources, Inherited: r.Listeners,
			Essential: essentialPort(r.Config), OnFaults: r.writePortFaults,
		})
	case config.DriverSlirp:
		d, err = slirp4netns.NewParentDriver(r.LogWriter, r.portSocket(p.Driver))
	case config.DriverGvisor:
		d, err = gvisortapvsock.NewParentDriver(r.LogWriter, r.Runtime.StateDir())
	case config.PortsPesto:
		d, err = pasta.NewParentDriver(r.LogWriter, config.PortsPesto, r.portSocket(p.Driver), r.Config.Network.IPv6)
	default:
		err = fmt.Errorf("the driver is unknown")
	}
	if err != nil {
		return nil, errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("port driver %s: %w", p.Driver, err))
	}
	return d, nil
}

// essentialPort returns a function that recognizes the forwards without which the node is of no use to others: the API server's
// and the kubelet's. They keep some descriptors whatever happens to other ports.
func essentialPort(c *config.NodeConfig) func(port.Spec) bool {
	return func(s port.Spec) bool {
		api := c.ControlPlane.Embedded && s.ParentPort == c.API.Port && s.ParentIP == c.API.BindAddress && s.ChildPort == c.Inside.APIServerPort
		kubelet := c.MultiNode() && s.ParentPort == c.Inside.KubeletPort && s.ChildPort == c.Inside.KubeletPort
		return api || kubelet
	}
}

// writePortFaults writes down for the node role which ports take no connections at present.
func (r *run) writePortFaults(faults []portdriver.Fault) error {
	list := []layout.PortFault{}
	for _, f := range faults {
		list = append(list, layout.PortFault{
			HostIP: f.Spec.ParentIP, HostPort: f.Spec.ParentPort, Proto: f.Spec.Proto, Reason: f.Reason, Message: f.Message,
		})
	}
	err := layout.WriteJSON(r.Runtime.PortFaults(), list)
	if err != nil {
		r.Log.WithError(err).Warn("ports that take no connections are not reported")
	}
	return err
}
