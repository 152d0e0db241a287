package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

func validatePorts(c *NodeConfig, fs *faults) {
	address(fs, "api.bindAddress", c.API.BindAddress)
	for i, san := range c.API.ExtraSANs {
		if _, err := netip.ParseAddr(san); err != nil && !isDNSSubdomain(strings.TrimPrefix(san, "*.")) {
			fs.add(fmt.Sprintf("api.extraSANs[%d]", i), "", "%q: must be an IP address or a DNS name in lower case", san)
		}
	}
	validatePortDriver(c, fs)
	for i, a := range c.Ports.BindAddresses {
		at := fmt.Sprintf("ports.bindAddresses[%d]", i)
		bindAddress(fs, at, a)
		if slices.Contains(c.Ports.BindAddresses[:i], a) {
			fs.add(at, "", "%s: duplicate entry", a)
		}
	}
	if len(c.Ports.BindAddresses) == 0 && c.Ports.Driver != DriverNone {
		fs.add("ports.bindAddresses", "ports.driver: none    # for no forwarding at all", "empty, but forwarded ports need an address to listen on")
	}
	if len(c.Ports.Static) > 0 && c.Ports.Driver == DriverNone {
		fs.add("ports.static", "", "cannot be forwarded with ports.driver none")
	}
	for i, text := range c.Ports.ExternalIPs {
		if _, ok := parseRange(text); !ok {
			fs.add(fmt.Sprintf("ports.externalIPs[%d]", i), "", "%q: must be an IP address or a CIDR", text)
		}
	}
	for i, name := range c.Ports.Annotations.Namespaces {
		if name != AllNamespaces && !isDNSLabel(name) {
			fs.add(fmt.Sprintf("ports.annotations.namespaces[%d]", i), "", "%q: must be the name of a namespace, or %s for all", name, AllNamespaces)
		}
	}
	if _, _, err := ParsePickRange(c.Ports.PickRange); err != nil {
		fs.add("ports.pickRange", "", "%v", err)
	}
	validateForwards(c, fs)
}

// bindAddress checks for an IP address or a possible interface name. It does not check whether the host has the interface.
func bindAddress(fs *faults, field, s string) {
	if ip, err := netip.ParseAddr(s); err == nil && ip.Zone() == "" || err != nil && isInterfaceName(s) && !strings.ContainsAny(s, ":%,") {
		return
	}
	fs.add(field, "", "%q: must be an IP address of the host, 0.0.0.0 or :: for all, or the name of an interface", s)
}

func address(fs *faults, field, s string) {
	if ip, err := netip.ParseAddr(s); err != nil || ip.Zone() != "" {
		fs.add(field, "", "%q: must be an IP address of the host, or 0.0.0.0 for all", s)
	}
}

// validateForwards checks each static forward, and that no two listeners use the same port of the host.
func validateForwards(c *NodeConfig, fs *faults) {
	type listener struct {
		owner, proto string
		port, count  int
		ips          []netip.Addr
	}
	var taken []listener
	if api, err := netip.ParseAddr(c.API.BindAddress); err == nil && c.ControlPlane.Embedded && c.API.Port != 0 {
		taken = append(taken, listener{"api.port", "tcp", c.API.Port, 1, []netip.Addr{api}})
	}
	if c.LocalRegistry.Enabled {
		taken = append(taken, listener{"localRegistry.port", "tcp", c.LocalRegistry.Port, 1, []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}})
	}
	for i, s := range c.Ports.Static {
		at := fmt.Sprintf("ports.static[%d]", i)
		f, err := ParseForward(s)
		if err != nil {
			fs.add(at, "", "%v", err)
			continue
		}
		if f.HostPort == 0 {
			continue // the node picks a free port
		}
		l := listener{at, f.Proto, f.HostPort, f.Count, c.ForwardAddresses(f)}
		for _, other := range taken {
			first := max(l.port, other.port)
			if l.proto == other.proto && first < min(l.port+l.count, other.port+other.count) && anyCollides(l.ips, other.ips) {
				fs.add(at, "", "host port %d/%s is already used by %s", first, l.proto, other.owner)
			}
		}
		taken = append(taken, l)
	}
}

// ForwardAddresses returns the addresses of the host that f listens on: its HostIP if set, else ports.bindAddresses without
// names of interfaces, because this package does not read the host.
func (c *NodeConfig) ForwardAddresses(f Forward) []netip.Addr {
	if f.HostIP.IsValid() {
		return []netip.Addr{f.HostIP}
	}
	var ips []netip.Addr
	for _, s := range c.Ports.BindAddresses {
		if ip, err := netip.ParseAddr(s); err == nil {
			ips = append(ips, ip)
		}
	}
	return ips
}

func anyCollides(a, b []netip.Addr) bool {
	for _, x := range a {
		for _, y := range b {
			if x == y || x.Is4() == y.Is4() && (x.IsUnspecified() || y.IsUnspecified()) {
				return true
			}
		}
	}
	return false
}
