package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Limits of address ranges.
const (
	// The node takes the 100th address of the tap network, so 128 must fit; slirp4netns wants no longer prefix either.
	minTapPrefix, maxTapPrefix = 8, 25
	// kube-apiserver refuses a Service range of more than 20 bits; ours must hold the tenth address.
	minServicePrefix, maxServicePrefix = 12, 28
	// kube-controller-manager refuses more than 2^16 node ranges; a node's range must hold a gateway and a pod.
	maxNodeCIDRBits, maxNodeMask = 16, 29
)

// driverHost is RootlessKit's name for no network namespace of its own, which users of it may ask for.
const driverHost = "host"

func (c *NodeConfig) validateNetwork(fs *faults) {
	n := c.Network
	if n.Driver == driverHost {
		fs.add("network.driver", "leave network.driver out, or choose one of "+strings.Join(networkDrivers(), ", "),
			"%s: an account has no rights over the host's network namespace, so no CNI plugin could give a pod a network there", n.Driver)
	} else {
		oneOf(fs, "network.driver", n.Driver, networkDrivers()...)
	}
	inRange(fs, "network.mtu", n.MTU, minMTU, maxMTU)
	if n.IPv6 && n.MTU >= minMTU && n.MTU < minMTUv6 {
		fs.add("network.mtu", "", "%d: IPv6 (network.ipv6) needs at least %d", n.MTU, minMTUv6)
	}
	if p, ok := cidr(fs, "network.cidr", n.CIDR); ok {
		prefixBetween(fs, "network.cidr", p, minTapPrefix, maxTapPrefix)
	}
	if n.Driver == DriverLXCUserNIC && !isInterfaceName(n.LXCBridge) {
		fs.add("network.lxcBridge", "", "%q: want the name of a bridge of the host", n.LXCBridge)
	}
	if len(n.NameServers) > maxNameServers {
		fs.add("network.nameServers", "", "%d entries: resolv.conf takes %d", len(n.NameServers), maxNameServers)
	}
	for i, s := range n.NameServers {
		at := fmt.Sprintf("network.nameServers[%d]", i)
		ip, err := netip.ParseAddr(s)
		switch {
		case err != nil:
			fs.add(at, "", "%q: want an IP address", s)
		case ip.IsLoopback():
			fs.add(at, "leave network.nameServers out: the node's own forwarder asks the host's resolver each time",
				"%s: the host's loopback is not the node's, nothing answers there", s)
		}
	}
}

func isInterfaceName(s string) bool {
	return s != "" && len(s) <= maxInterfaceNameLen && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '/' })
}

func (c *NodeConfig) validateCluster(fs *faults) {
	cl := c.Cluster
	if pod, ok := cidr(fs, "cluster.podCIDR", cl.PodCIDR); ok {
		c.validateNodeMask(fs, pod)
	}
	if service, ok := cidr(fs, "cluster.serviceCIDR", cl.ServiceCIDR); ok {
		if prefixBetween(fs, "cluster.serviceCIDR", service, minServicePrefix, maxServicePrefix) {
			c.validateDNSAddress(fs, service)
		}
	}
	if !isDNSSubdomain(cl.Domain) {
		fs.add("cluster.domain", "", "%q: want a DNS name in lower case such as cluster.local", cl.Domain)
	}
}

func (c *NodeConfig) validateNodeMask(fs *faults, pod netip.Prefix) {
	mask := c.Cluster.NodeCIDRMaskSize
	low, high := pod.Bits(), min(pod.Bits()+maxNodeCIDRBits, maxNodeMask)
	switch {
	case low > high:
		fs.add("cluster.podCIDR", "", "%s: want a prefix of at most /%d", pod, maxNodeMask)
	case mask < low || mask > high:
		fs.add("cluster.nodeCIDRMaskSize", "", "%d: want %d to %d for cluster.podCIDR %s", mask, low, high, pod)
	default:
		// Network, gateway and broadcast address are no pod's.
		if room := 1<<(32-mask) - 3; c.Kubelet.MaxPods > room {
			fs.add("kubelet.maxPods", "lower kubelet.maxPods or cluster.nodeCIDRMaskSize",
				"%d pods do not fit into the node's /%d, which has room for %d", c.Kubelet.MaxPods, mask, room)
		}
	}
}

func (c *NodeConfig) validateDNSAddress(fs *faults, service netip.Prefix) {
	const at = "cluster.dnsAddress"
	hint := "leave cluster.dnsAddress out to take " + nthAddress(service, dnsHostNumber).String()
	ip, err := netip.ParseAddr(c.Cluster.DNSAddress)
	switch {
	case err != nil:
		fs.add(at, hint, "%q: want an IP address", c.Cluster.DNSAddress)
	case !service.Contains(ip):
		fs.add(at, hint, "%s is not in cluster.serviceCIDR %s", ip, service)
	case ip == service.Addr() || !service.Contains(ip.Next()):
		fs.add(at, hint, "%s is the first or last address of cluster.serviceCIDR %s and cannot be a Service's", ip, service)
	case ip == nthAddress(service, 1):
		fs.add(at, hint, "%s is the address of the Service kubernetes", ip)
	}
}

// validateOverlaps compares the networks that must be told apart by address alone.
func (c *NodeConfig) validateOverlaps(fs *faults) {
	type network struct {
		field  string
		prefix netip.Prefix
	}
	var networks []network
	add := func(field, s string) {
		if p, err := netip.ParsePrefix(s); err == nil {
			networks = append(networks, network{field, p.Masked()})
		}
	}
	add("cluster.podCIDR", c.Cluster.PodCIDR)
	add("cluster.serviceCIDR", c.Cluster.ServiceCIDR)
	add("network.cidr", c.Network.CIDR)
	for i, a := range networks {
		for _, b := range networks[:i] {
			if a.prefix.Overlaps(b.prefix) {
				fs.add(a.field, "the defaults do not overlap: podCIDR 10.42.0.0/16, serviceCIDR 10.43.0.0/16, network.cidr 10.0.2.0/24",
					"%s overlaps %s %s", a.prefix, b.field, b.prefix)
			}
		}
	}
}

// cidr parses an IPv4 range that nothing else has a use for.
func cidr(fs *faults, field, s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		fs.add(field, "", "%q: want an IPv4 range such as 10.42.0.0/16", s)
	case !p.Addr().Is4():
		fs.add(field, "", "%s: want IPv4; a node has IPv6 towards the world only (network.ipv6)", s)
	case p.Masked() != p:
		fs.add(field, "", "%s: has bits after its prefix, did you mean %s?", s, p.Masked())
	case p.Addr().IsLoopback() || p.Addr().IsMulticast() || p.Addr().IsLinkLocalUnicast() || p.Addr().IsUnspecified():
		fs.add(field, "", "%s: a reserved range", s)
	default:
		return p, true
	}
	return netip.Prefix{}, false
}

func prefixBetween(fs *faults, field string, p netip.Prefix, low, high int) bool {
	if p.Bits() < low || p.Bits() > high {
		fs.add(field, "", "%s: want a prefix of /%d to /%d", p, low, high)
		return false
	}
	return true
}

func (c *NodeConfig) validatePorts(fs *faults) {
	address(fs, "api.bindAddress", c.API.BindAddress)
	inRange(fs, "api.port", c.API.Port, 1, 65535)
	for i, san := range c.API.ExtraSANs {
		if _, err := netip.ParseAddr(san); err != nil && !isDNSSubdomain(strings.TrimPrefix(san, "*.")) {
			fs.add(fmt.Sprintf("api.extraSANs[%d]", i), "", "%q: want an IP address or a DNS name in lower case", san)
		}
	}
	c.validatePortDriver(fs)
	for i, a := range c.Ports.BindAddresses {
		at := fmt.Sprintf("ports.bindAddresses[%d]", i)
		address(fs, at, a)
		if slices.Contains(c.Ports.BindAddresses[:i], a) {
			fs.add(at, "", "%s is there already", a)
		}
	}
	if len(c.Ports.BindAddresses) == 0 && c.Ports.Driver != DriverNone {
		fs.add("ports.bindAddresses", "ports.driver: none    # for no forwarding at all", "empty: forwarded ports need an address to listen on")
	}
	if len(c.Ports.Static) > 0 && c.Ports.Driver == DriverNone {
		fs.add("ports.static", "", "cannot be forwarded with ports.driver none")
	}
	c.validateForwards(fs)
}

func address(fs *faults, field, s string) {
	if ip, err := netip.ParseAddr(s); err != nil || ip.Zone() != "" {
		fs.add(field, "", "%q: want an IP address of the host, or 0.0.0.0 for all", s)
	}
}

// validateForwards checks each static forward and that no two listeners want the same port of the host.
func (c *NodeConfig) validateForwards(fs *faults) {
	type listener struct {
		owner, proto string
		port         int
		ips          []netip.Addr
	}
	var taken []listener
	if api, err := netip.ParseAddr(c.API.BindAddress); err == nil {
		taken = append(taken, listener{"api.port", "tcp", c.API.Port, []netip.Addr{api}})
	}
	for i, s := range c.Ports.Static {
		at := fmt.Sprintf("ports.static[%d]", i)
		f, err := ParseForward(s)
		if err != nil {
			fs.add(at, "", "%v", err)
			continue
		}
		l := listener{at, f.Proto, f.HostPort, c.ForwardAddresses(f)}
		for _, other := range taken {
			if l.proto == other.proto && l.port == other.port && anyCollides(l.ips, other.ips) {
				fs.add(at, "", "host port %d/%s is that of %s already", l.port, l.proto, other.owner)
			}
		}
		taken = append(taken, l)
	}
}

// ForwardAddresses are the addresses of the host that f listens on: its own, else ports.bindAddresses.
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

// insidePorts lists the TCP ports inside by field, in the order of their declaration.
func (c *NodeConfig) insidePorts() []leaf {
	var out []leaf
	for _, l := range c.leaves() {
		if strings.HasPrefix(l.path, "inside.") {
			out = append(out, l)
		}
	}
	return out
}

func (c *NodeConfig) validateInside(fs *faults) {
	owner := map[int]string{}
	for _, l := range c.insidePorts() {
		port := int(l.value.Int())
		inRange(fs, l.path, port, 1, 65535)
		if other, ok := owner[port]; ok {
			fs.add(l.path, "", "%d is %s already", port, other)
			continue
		}
		owner[port] = l.path
	}
	inRange(fs, "flannel.vxlanPort", c.Flannel.VXLANPort, 1, 65535)
}
