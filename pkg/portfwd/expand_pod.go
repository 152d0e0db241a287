package portfwd

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// expandPod gives the forwards of one pod of this node.
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
		err = fmt.Errorf("annotation %s: it is for Services; a pod's port says hostPort itself", AnnotationHostPort)
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
		host := q.HostPort
		if p.HostNetwork {
			host = cmp.Or(q.HostPort, q.ContainerPort)
		}
		switch {
		case host == 0:
			continue
		case proto != "tcp" && proto != "udp":
			skipped = append(skipped, fmt.Sprintf("%s (%s %d)", portName(q.Name, q.ContainerPort), q.Protocol, host))
			continue
		case len(e.forwards) > cfg.MaxForwards:
			continue // the limit refuses what is beyond it, and one is enough for that
		}
		o := owner(portName(q.Name, q.ContainerPort))
		addrs, reason, err := podAddresses(p.Namespace, q, c, cfg)
		if err != nil {
			e.warn(o, reason, "not forwarded to the host: %v", err)
			continue
		}
		e.pod(p, q, o, proto, cfg.shifted(host), addrs)
	}
	if len(skipped) > 0 {
		e.warn(owner(""), ReasonProtocol, "not forwarded to the host: %s; only TCP and UDP can be, SCTP cannot", some(skipped))
	}
	return e
}

// podAddresses returns where a port of a pod listens. An address in the pod's own spec takes precedence; it must be allowed
// as one of AnnotationBind must.
func podAddresses(namespace string, q PodPort, c choices, cfg Config) (addrs []netip.Addr, reason string, err error) {
	if ip, err := netip.ParseAddr(q.HostIP); err == nil && !ip.Unmap().IsUnspecified() {
		ip = ip.Unmap()
		switch {
		case !cfg.mayBind(namespace, ip):
			return nil, ReasonNotAllowed, fmt.Errorf("hostIP %s is not among the addresses that ports may be bound to", ip)
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

// pod adds one port of a pod on those addresses whose family the pod has. The pod is reached at its own address, which
// asks nothing of the CNI's port mapping; one in the node's network at the node's. One that has no address yet, as after a
// restart of the node, waits.
func (e *expansion) pod(p Pod, q PodPort, o Owner, proto string, host int, addrs []netip.Addr) {
	for _, a := range addrs {
		if len(p.IPs) == 0 { // it keeps its place
			e.add(Forward{
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
			e.add(f)
		}
	}
}
