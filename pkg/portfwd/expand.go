package portfwd

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// healthCheckPort is the port name in the owner of a health check node port.
const healthCheckPort = "health-check"

// expandService returns the forwards of one Service. ready is nil if there is no source of endpoints.
func expandService(s Service, ready *Endpoints, cfg Config) expansion {
	var e expansion
	x := serviceExpander{s: s, cfg: cfg, ready: ready, e: &e}
	if !x.requestsPorts() {
		return e
	}
	whole := x.owner("")
	c, err := parseChoices(s.Namespace, s.Annotations, cfg)
	if err == nil {
		err = c.validate(s)
	}
	switch {
	case err != nil:
		e.warn(whole, reasonOfChoice(err), "not forwarded to the host: %v", err)
		return e
	case c.off:
		return e
	}
	x.choices = c
	x.warnOfExternalIPs(whole)
	if x.sources, err = s.sourceRanges(); err != nil {
		x.closed = &Warning{Owner: whole, Reason: ReasonSourcesInvalid, Message: fmt.Sprintf("not forwarded to the host: %v", err)}
	} else if x.sources != "" && cfg.unfiltered {
		x.closed = &Warning{Owner: whole, Reason: ReasonSources, Message: "not forwarded to the host: the Service has " +
			"loadBalancerSourceRanges, which the port driver cannot enforce because it does not see the addresses of clients"}
	}
	x.addrs = addressesFor(s.IPFamilies, c.bind, cfg)
	var skipped []string
	for _, p := range s.Ports {
		proto := strings.ToLower(cmp.Or(p.Protocol, "TCP"))
		if proto != "tcp" && proto != "udp" {
			skipped = append(skipped, fmt.Sprintf("%s (%s %d)", portName(p.Name, p.Port), p.Protocol, cmp.Or(p.NodePort, p.Port)))
			continue
		}
		if len(e.forwards) > cfg.MaxForwards {
			break // one forward beyond the limit is enough to trigger it
		}
		x.port(p, proto)
	}
	if cfg.NodePorts && s.HealthCheckNodePort != 0 {
		x.health()
	}
	// One warning for a Service, for all its affected ports.
	if len(skipped) > 0 {
		e.warn(whole, ReasonProtocol, "not forwarded to the host: %s: only TCP and UDP are supported", joinFirst(skipped))
	}
	if x.closed != nil && len(e.refused) > 0 {
		e.warnings = append(e.warnings, *x.closed)
	}
	if len(x.addrs) == 0 && len(e.forwards)+len(e.refused) == 0 && len(skipped) < len(s.Ports) {
		e.warn(whole, ReasonFamily, "not forwarded to the host: no bind address matches the IP families of the Service (%s)", strings.Join(s.IPFamilies, ", "))
	}
	return e
}

type serviceExpander struct {
	s       Service
	cfg     Config
	ready   *Endpoints
	choices choices
	addrs   []netip.Addr // to bind, of the Service's families
	sources SourceRanges
	closed  *Warning // reason why the source ranges cannot be enforced, or nil
	e       *expansion
}

func (x *serviceExpander) owner(port string) Owner {
	return Owner{Kind: KindService, Namespace: x.s.Namespace, Name: x.s.Name, UID: x.s.UID, Port: port}
}

// requestsPorts reports whether the Service requests ports outside the cluster, by its type or by external addresses.
// External addresses that the config does not allow count too, because they result in a warning.
func (x *serviceExpander) requestsPorts() bool {
	if x.s.Type == "ExternalName" {
		return false
	}
	return x.nodePorts() || x.balanced() || len(x.external()) > 0 || x.ignoresExternalIPs()
}

// ignoresExternalIPs reports whether the Service has external addresses that the config does not allow.
func (x *serviceExpander) ignoresExternalIPs() bool {
	switch {
	case len(x.s.ExternalIPs) == 0, x.cfg.ExternalIPs && x.cfg.ExternalIPRanges == nil:
		return false
	case !x.cfg.ExternalIPs && !x.cfg.NodePorts && !x.cfg.LoadBalancers:
		return false // no ports of Services are forwarded at all
	}
	return !x.cfg.ExternalIPs || slices.ContainsFunc(x.s.ExternalIPs, func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err == nil && x.cfg.owns(ip.Unmap()) && !x.cfg.forwardsExternal(ip.Unmap())
	})
}

func (x *serviceExpander) warnOfExternalIPs(owner Owner) {
	if x.ignoresExternalIPs() {
		x.e.warn(owner, ReasonExternalIPs, "externalIPs are not forwarded to the host: not allowed by ports.externalIPs in the node's configuration")
	}
}

// forwardsExternal reports whether the config allows a Service to have this external address.
func (c Config) forwardsExternal(ip netip.Addr) bool {
	return c.ExternalIPs && (c.ExternalIPRanges == nil ||
		slices.ContainsFunc(c.ExternalIPRanges, func(p netip.Prefix) bool { return p.Contains(ip) }))
}

func (x *serviceExpander) nodePorts() bool {
	return x.cfg.NodePorts && (x.s.Type == "NodePort" || x.s.Type == "LoadBalancer") &&
		slices.ContainsFunc(x.s.Ports, func(p ServicePort) bool { return p.NodePort != 0 })
}

func (x *serviceExpander) balanced() bool { return isBalanced(x.s, x.cfg) }

// isBalanced reports whether the node acts as the load balancer of the Service.
func isBalanced(s Service, cfg Config) bool {
	return cfg.LoadBalancers && s.Type == "LoadBalancer" && (s.LoadBalancerClass == "" || s.LoadBalancerClass == LoadBalancerClass)
}

// external returns the external addresses of the Service that belong to the host and that the config allows.
func (x *serviceExpander) external() []netip.Addr {
	var own []netip.Addr
	for _, text := range x.s.ExternalIPs {
		if ip, err := netip.ParseAddr(text); err == nil && x.cfg.owns(ip.Unmap()) && x.cfg.forwardsExternal(ip.Unmap()) {
			own = append(own, ip.Unmap())
		}
	}
	return own
}

func (x *serviceExpander) port(p ServicePort, proto string) {
	chosen := x.choices.hostPort(p)
	owner := x.owner(portName(p.Name, p.Port))
	if x.nodePorts() && p.NodePort != 0 {
		host := p.NodePort
		if x.s.Type == "NodePort" && chosen != 0 {
			host = chosen
		}
		assigned := host == p.NodePort
		for _, a := range x.addrs {
			x.forward(owner, proto, a, host, netip.Addr{}, p.NodePort, assigned)
		}
	}
	var outer []netip.Addr
	if x.balanced() {
		outer = append(outer, x.addrs...)
	}
	for _, a := range distinct(append(outer, x.external()...)) {
		host := cmp.Or(chosen, x.cfg.shifted(p.Port))
		if p.NodePort != 0 {
			x.forward(owner, proto, a, host, netip.Addr{}, p.NodePort, false)
		} else if ip := x.clusterIP(a); ip.IsValid() {
			// kube-proxy also serves a cluster address for connections from the node itself.
			x.forward(owner, proto, a, host, ip, p.Port, false)
		}
	}
}

func (x *serviceExpander) forward(o Owner, proto string, a netip.Addr, host int, childIP netip.Addr, child int, assigned bool) {
	if !validPort(host) {
		x.e.warn(o, ReasonInvalid, "invalid host port %d: must be between 1 and 65535", host)
		return
	}
	f := Forward{
		Bind: Bind{Proto: family(proto, a), IP: a, Port: host}, ChildIP: childIP, ChildPort: child, Owner: o, Waiting: !x.hasEndpoint(a),
		Assigned: assigned, Created: x.created(), Sources: x.sources,
	}
	if x.closed != nil {
		x.e.refused = append(x.e.refused, Refusal{f, x.closed.Reason, x.closed.Message})
		return
	}
	x.e.addFor(x.cfg, f)
}

func (x *serviceExpander) created() time.Time { return seconds(x.s.Created) }

// seconds rounds t to the precision of the API, so that equal times compare equal.
func seconds(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.Unix(t.Unix(), 0).UTC()
}

// hasEndpoint reports whether a ready endpoint accepts connections that arrive at a.
func (x *serviceExpander) hasEndpoint(a netip.Addr) bool {
	if x.ready == nil {
		return true
	}
	local := x.s.ExternalTrafficPolicy == "Local"
	if a.Is4() {
		return x.ready.Local4 || x.ready.Ready4 && !local
	}
	return x.ready.Local6 || x.ready.Ready6 && !local
}

// health forwards the port on which kube-proxy reports to external load balancers whether this node has an endpoint. The
// port is open even if there is no endpoint. Source ranges do not apply: kube-proxy allows all clients too.
func (x *serviceExpander) health() {
	for _, a := range x.addrs {
		x.e.add(Forward{
			Bind:      Bind{Proto: family("tcp", a), IP: a, Port: x.s.HealthCheckNodePort},
			ChildPort: x.s.HealthCheckNodePort, Owner: x.owner(healthCheckPort),
			Assigned: true, Created: x.created(),
		})
	}
}

// clusterIP returns the Service's cluster address of a's family, or the zero Addr.
func (x *serviceExpander) clusterIP(a netip.Addr) netip.Addr {
	for _, text := range x.s.ClusterIPs {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Is4() == a.Is4() {
			return ip
		}
	}
	return netip.Addr{}
}

// addressesFor returns those of addrs, or of the config's bind addresses if addrs is nil, that match the families.
func addressesFor(families []string, addrs []netip.Addr, cfg Config) []netip.Addr {
	if addrs == nil {
		addrs = cfg.BindAddresses
	}
	has4 := len(families) == 0 || slices.Contains(families, "IPv4")
	has6 := slices.Contains(families, "IPv6")
	var out []netip.Addr
	for _, a := range addrs {
		if a.Is4() && has4 || !a.Is4() && has6 {
			out = append(out, a)
		}
	}
	return out
}
