package config

import (
	"fmt"
	"net/netip"
	"strings"
)

// portsImplicit is RootlessKit's mode in which pasta forwards all listening ports, which RootlessKit users may try.
const portsImplicit = "implicit"

// NeedsNetwork returns the only network driver that the port driver works with, or "" if it works with all.
func (p Ports) NeedsNetwork() string {
	switch p.Driver {
	case DriverSlirp, DriverGvisor:
		return p.Driver
	case PortsPesto:
		return DriverPasta
	}
	return ""
}

func validatePortDriver(c *NodeConfig, fs *faults) {
	const field = "ports.driver"
	p := c.Ports
	if p.Driver == portsImplicit {
		fs.add(field, "ports.driver: builtin    # or pesto, with a passt of May 2026 or later",
			"%s: not supported, because pasta would forward every listening port of the node, those of the control plane on all addresses of the "+
				"host, but no NodePorts, for which there are no listeners", p.Driver)
		return
	}
	oneOf(fs, field, p.Driver, portDrivers()...)
	if need := p.NeedsNetwork(); need != "" && c.Network.Driver != need && c.Network.Driver != DriverAuto {
		fs.add(field, fmt.Sprintf("ports.driver: %s    # works with every network driver\n# or network.driver: %s", PortsBuiltin, need),
			"%s works with network.driver %s only, not with %s", p.Driver, need, c.Network.Driver)
	}
	if p.Driver != DriverSlirp && p.Driver != DriverGvisor && (p.Driver != PortsPesto || c.Network.IPv6) {
		return
	}
	for i, a := range append([]string{c.API.BindAddress}, p.BindAddresses...) {
		if ip, err := netip.ParseAddr(a); err != nil || ip.Is4() || ip.Is4In6() {
			continue
		}
		at := "api.bindAddress"
		if i > 0 {
			at = fmt.Sprintf("ports.bindAddresses[%d]", i-1)
		}
		hint := "ports.driver: " + PortsBuiltin
		if p.Driver == PortsPesto {
			hint = strings.Join([]string{hint, "# or network.ipv6: true"}, "\n")
		}
		fs.add(at, hint, "%s: ports.driver %s forwards IPv4 only", a, p.Driver)
	}
}
