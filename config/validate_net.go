package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// kube-controller-manager rejects more than 2^16 node ranges; a node's range must have room for a gateway and a pod.
const maxNodeCIDRBits, maxNodeMask = 16, 29

// flannelVXLAN encapsulates packets. vxlanOverheadV6 is the size of the additional headers with IPv6, in bytes.
const (
	flannelVXLAN    = "vxlan"
	vxlanOverheadV6 = 70
)

// driverHost is RootlessKit's driver without a network namespace, which RootlessKit users may try.
const driverHost = "host"

func validateNetwork(c *NodeConfig, fs *faults) {
	n := c.Network
	if n.Driver == driverHost {
		fs.add("network.driver", "omit network.driver, or use one of "+strings.Join(networkDrivers(), ", "),
			"%s: not supported, because an ordinary user cannot configure networks of pods in the host's network namespace", n.Driver)
	} else {
		oneOf(fs, "network.driver", n.Driver, networkDrivers()...)
	}
	least := minMTUv6
	if c.Flannel.Backend == flannelVXLAN {
		least += vxlanOverheadV6
	}
	if n.IPv6 && n.MTU < least && !fs.has("network.mtu") {
		fs.add("network.mtu", "", "%d: must be at least %d with network.ipv6, so that pods have an MTU of %d", n.MTU, least, minMTUv6)
	}
	validateHostPorts(c, fs)
	if n.Driver == DriverLXCUserNIC && !isInterfaceName(n.LXCBridge) {
		fs.add("network.lxcBridge", "", "%q: must be the name of a bridge on the host", n.LXCBridge)
	}
	if len(n.NameServers) > maxNameServers {
		fs.add("network.nameServers", "", "%d entries: resolv.conf supports at most %d", len(n.NameServers), maxNameServers)
	}
	for i, s := range n.NameServers {
		at := fmt.Sprintf("network.nameServers[%d]", i)
		ip, err := netip.ParseAddr(s)
		switch {
		case err != nil:
			fs.add(at, "", "%q: must be an IP address", s)
		case ip.IsLoopback():
			fs.add(at, "omit network.nameServers: the default forwarder uses the host's resolver",
				"%s: loopback addresses of the host cannot be reached from inside the node", s)
		}
	}
}

// validateHostPorts checks network.hostPorts and network.hostAddress.
func validateHostPorts(c *NodeConfig, fs *faults) {
	for i, p := range c.Network.HostPorts {
		if slices.Contains(c.Network.HostPorts[:i], p) {
			fs.add(fmt.Sprintf("network.hostPorts[%d]", i), "", "%d: duplicate entry", p)
		}
	}
	const at = "network.hostAddress"
	ip, err := netip.ParseAddr(c.Network.HostAddress)
	if err != nil || !ip.Is4() || ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() {
		fs.add(at, "omit network.hostAddress", "%q: must be an unused IPv4 address that is not a loopback address", c.Network.HostAddress)
		return
	}
	for _, other := range []struct{ field, cidr string }{
		{"network.cidr", c.Network.CIDR}, {"cluster.podCIDR", c.Cluster.PodCIDR}, {"cluster.serviceCIDR", c.Cluster.ServiceCIDR},
	} {
		if p, err := netip.ParsePrefix(other.cidr); err == nil && p.Contains(ip) {
			fs.add(at, "omit network.hostAddress", "%s is in %s %s", ip, other.field, p)
		}
	}
}

func isInterfaceName(s string) bool {
	return s != "" && len(s) <= maxInterfaceNameLen && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '/' })
}

func validateCluster(c *NodeConfig, fs *faults) {
	cl := c.Cluster
	if !fs.has("cluster.podCIDR") {
		validateNodeMask(c, fs, netip.MustParsePrefix(cl.PodCIDR))
	}
	if !fs.has("cluster.serviceCIDR") {
		validateDNSAddress(c, fs, netip.MustParsePrefix(cl.ServiceCIDR))
	}
	if !isDNSSubdomain(cl.Domain) {
		fs.add("cluster.domain", "", "%q: must be a DNS name in lower case such as cluster.local", cl.Domain)
	}
}

func validateNodeMask(c *NodeConfig, fs *faults, pod netip.Prefix) {
	mask := c.Cluster.NodeCIDRMaskSize
	low, high := pod.Bits(), min(pod.Bits()+maxNodeCIDRBits, maxNodeMask)
	switch {
	case low > high:
		fs.add("cluster.podCIDR", "", "%s: must have a prefix length of at most /%d", pod, maxNodeMask)
	case mask < low || mask > high:
		fs.add("cluster.nodeCIDRMaskSize", "", "%d: must be between %d and %d for cluster.podCIDR %s", mask, low, high, pod)
	default:
		// Pods cannot have the network, gateway and broadcast address.
		if room := 1<<(32-mask) - 3; c.Kubelet.MaxPods > room {
			fs.add("kubelet.maxPods", "lower kubelet.maxPods or cluster.nodeCIDRMaskSize",
				"%d pods do not fit into the node's /%d, which has room for %d", c.Kubelet.MaxPods, mask, room)
		}
	}
}

func validateDNSAddress(c *NodeConfig, fs *faults, service netip.Prefix) {
	const at = "cluster.dnsAddress"
	hint := "omit cluster.dnsAddress to use " + nthAddress(service, dnsHostNumber).String()
	ip, err := netip.ParseAddr(c.Cluster.DNSAddress)
	switch {
	case err != nil:
		fs.add(at, hint, "%q: must be an IP address", c.Cluster.DNSAddress)
	case !service.Contains(ip):
		fs.add(at, hint, "%s is not in cluster.serviceCIDR %s", ip, service)
	case ip == service.Addr() || !service.Contains(ip.Next()):
		fs.add(at, hint, "%s is the first or last address of cluster.serviceCIDR %s and cannot be used by a Service", ip, service)
	case ip == nthAddress(service, 1):
		fs.add(at, hint, "%s is the address of the Service kubernetes", ip)
	}
}

// validateOverlaps checks that networks which are distinguished only by their addresses do not overlap.
func validateOverlaps(c *NodeConfig, fs *faults) {
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
	if c.Network.IPv6 {
		add("network.ipv6", TapCIDRv6)
		add("cluster.podCIDRv6", c.Cluster.PodCIDRv6)
		add("cluster.serviceCIDRv6", c.Cluster.ServiceCIDRv6)
	}
	for i, a := range networks {
		for _, b := range networks[:i] {
			if a.prefix.Overlaps(b.prefix) {
				fs.add(a.field, "the defaults do not overlap: podCIDR 10.42.0.0/16, serviceCIDR 10.43.0.0/16, network.cidr 10.0.2.0/24, "+
					"podCIDRv6 fd00:10:42::/56, serviceCIDRv6 fd00:10:43::/112",
					"%s overlaps %s %s", a.prefix, b.field, b.prefix)
			}
		}
	}
}

// rangeFault returns the fault of an address range of the family IPv4 or IPv6, or "".
func rangeFault(s, family string, low, high int64) string {
	p, err := netip.ParsePrefix(s)
	ip := p.Addr()
	ok, example := ip.Is4(), "10.42.0.0/16"
	if family == "IPv6" {
		ok, example = ip.Is6() && !ip.Is4In6(), "fd00:10:42::/56"
	}
	switch {
	case err != nil || !ok:
		return fmt.Sprintf("%q: must be an %s range such as %s", s, family, example)
	case p.Masked() != p:
		return fmt.Sprintf("%s: has host bits set, did you mean %s?", s, p.Masked())
	case ip.IsLoopback() || ip.IsMulticast() || ip.IsLinkLocalUnicast() || ip.IsUnspecified():
		return s + ": is a reserved range"
	case int64(p.Bits()) < low || int64(p.Bits()) > high:
		return fmt.Sprintf("%s: must have a prefix length between /%d and /%d", p, low, high)
	}
	return ""
}

func validateInside(c *NodeConfig, fs *faults) {
	owner := map[int]string{}
	if c.LocalRegistry.Enabled {
		owner[c.LocalRegistry.Port] = "localRegistry.port"
	}
	for _, l := range c.leaves() {
		if !strings.HasPrefix(l.path, "inside.") {
			continue
		}
		port := int(l.value.Int())
		if other, ok := owner[port]; ok {
			fs.add(l.path, "", "%d is already used by %s", port, other)
			continue
		}
		owner[port] = l.path
	}
}
