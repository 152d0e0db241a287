package portfwd

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// expandPod returns the forwards of one pod of this node.
func expandPod(p Pod, cfg Config) expansion {
	var e expansion
	if p.HostNetwork && !cfg.HostNetworkPods || !p.HostNetwork && !cfg.PodHostPorts {
		return e
	}
	owner := func(port string) Owner {
		return Owner{Kind: KindPod, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Port: port}
	}
	if !slices.ContainsFunc(p.Ports, func(q PodPort) bool { return p.HostNetwork || q.HostPort != 0 }) {
		return e
	}
	c, err := parseChoices(p.Namespace, p.Annotations, cfg)
	if err == nil && (c.all != 0 || c.ports != nil) {
		err = fmt.Errorf("annotation %s: only valid for Services; set hostPort in the ports of the pod instead", AnnotationHostPort)
	}
	switch {
	case err != nil:
		e.warn(owner(""), reasonOfChoice(err), "not forwarded to the host: %v", err)
		return e
	case c.off:
		return e
	}
	var skipped []string
	for _, q := range p.Ports {
		proto := strings.ToLower(cmp.Or(q.Protocol, "TCP"))
		host := p.hostPort(q)
		switch {
		case host == 0:
			continue
		case proto != "tcp" && proto != "udp":
			skipped = append(skipped, fmt.Sprintf("%s (%s %d)", portName(q.Name, q.ContainerPort), q.Protocol, host))
			continue
		case len(e.forwards) > cfg.MaxForwards:
			continue // one forward beyond the limit is enough to trigger it
		}
		o := owner(portName(q.Name, q.ContainerPort))
		addrs, reason, err := podAddresses(p.Namespace, q, c, cfg)
		if err != nil {
			e.warn(o, reason, "not forwarded to the host: %v", err)
			continue
		}
		e.pod(p, q, o, proto, addrs, cfg)
	}
	if len(skipped) > 0 {
		e.warn(owner(""), ReasonProtocol, "not forwarded to the host: %s: only TCP and UDP are supported", joinFirst(skipped))
	}
	return e
}

// hostPort returns the host port of one of the pod's ports, or 0 if it has none.
func (p Pod) hostPort(q PodPort) int {
	if p.HostNetwork {
		return cmp.Or(q.HostPort, q.ContainerPort)
	}
	return q.HostPort
}

// podAddresses returns the addresses on which a port of a pod listens. hostIP in the pod's spec takes precedence; it must be
// allowed like an address of AnnotationBind.
func podAddresses(namespace string, q PodPort, c choices, cfg Config) (addrs []netip.Addr, reason string, err error) {
	if ip, err := netip.ParseAddr(q.HostIP); err == nil && !ip.Unmap().IsUnspecified() {
		ip = ip.Unmap()
		switch {
		case !cfg.mayBind(namespace, ip):
			return nil, ReasonNotAllowed, fmt.Errorf("hostIP %s is not an allowed bind address", ip)
		case !ip.IsLoopback() && !cfg.owns(ip):
			return nil, ReasonAddress, fmt.Errorf("hostIP %s is not an address of the host", ip)
		}
		return []netip.Addr{ip}, "", nil
	}
	if c.bind != nil {
		return c.bind, "", nil
	}
	return cfg.BindAddresses, "", nil
}

// pod adds one port of a pod on the addresses that match the pod's families. The forward connects to the pod's own address,
// which does not depend on the CNI's port mapping, or to the node's address for a pod in the node's network. A pod that has
// no address yet, for example after a restart of the node, waits.
func (e *expansion) pod(p Pod, q PodPort, o Owner, proto string, addrs []netip.Addr, cfg Config) {
	host := cfg.shifted(p.hostPort(q))
	for _, a := range addrs {
		if len(p.IPs) == 0 { // the port stays reserved
			e.addFor(cfg, Forward{
				Bind: Bind{Proto: family(proto, a), IP: a, Port: host}, ChildPort: q.ContainerPort, Owner: o, Waiting: true,
				Created: seconds(p.Created),
			})
		}
		for _, text := range p.IPs {
			ip, err := netip.ParseAddr(text)
			if err != nil || ip.Is4() != a.Is4() {
				continue
			}
			f := Forward{
				Bind: Bind{Proto: family(proto, a), IP: a, Port: host}, ChildIP: ip, ChildPort: q.ContainerPort, Owner: o,
				Created: seconds(p.Created),
			}
			if p.HostNetwork {
				f.ChildIP = netip.Addr{}
			}
			e.addFor(cfg, f)
		}
	}
}
