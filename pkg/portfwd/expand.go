package portfwd

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// healthCheckPort is the port's name in the owner of a health check node port.
const healthCheckPort = "health-check"

// expandService gives the forwards of one Service. ready is nil where nobody knows of endpoints.
func expandService(s Service, ready *Endpoints, cfg Config) expansion {
	var e expansion
	x := serviceExpander{s: s, cfg: cfg, ready: ready, e: &e}
	if !x.promises() {
		return e
	}
	whole := x.owner("")
	c, err := parseChoices(s.Namespace, s.Annotations, cfg)
	if err == nil {
		err = c.fits(s)
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
			"loadBalancerSourceRanges, and the port driver does not know the addresses of its clients"}
	}
	x.addrs = served(s.IPFamilies, c.bind, cfg)
	var skipped []string
	for _, p := range s.Ports {
		proto := strings.ToLower(cmp.Or(p.Protocol, "TCP"))
		if proto != "tcp" && proto != "udp" {
			skipped = append(skipped, fmt.Sprintf("%s (%s %d)", portName(p.Name, p.Port), p.Protocol, cmp.Or(p.NodePort, p.Port)))
			continue
		}
		if len(e.forwards) > cfg.MaxForwards {
			break // the limit refuses what is beyond it, and one is enough for that
		}
		x.port(p, proto)
	}
	if cfg.NodePorts && s.HealthCheckNodePort != 0 {
		x.health()
	}
	// One warning a Service, however many of its ports it concerns.
	if len(skipped) > 0 {
		e.warn(whole, ReasonProtocol, "not forwarded to the host: %s; only TCP and UDP can be, SCTP cannot", some(skipped))
	}
	if x.closed != nil && len(e.refused) > 0 {
		e.warnings = append(e.warnings, *x.closed)
	}
	if len(x.addrs) == 0 && len(e.forwards)+len(e.refused) == 0 && len(skipped) < len(s.Ports) {
		e.warn(whole, ReasonFamily, "not forwarded to the host: the Service is %s only and no bind address is", strings.Join(s.IPFamilies, ", "))
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
	closed  *Warning // why the source ranges cannot be enforced; nil if they can
	e       *expansion
}

func (x *serviceExpander) owner(port string) Owner {
	return Owner{Kind: KindService, Namespace: x.s.Namespace, Name: x.s.Name, UID: x.s.UID, Port: port}
}

// promises reports whether the Service asks for ports outside the cluster: by its type, or by external addresses, which
// are worth a warning where the config does not forward them.
func (x *serviceExpander) promises() bool {
	if x.s.Type == "ExternalName" {
		return false
	}
	return x.nodePorts() || x.balanced() || len(x.external()) > 0 || x.ignoresExternalIPs()
}

// ignoresExternalIPs reports whether the config does not let the Service have its external addresses.
func (x *serviceExpander) ignoresExternalIPs() bool {
	switch {
	case len(x.s.ExternalIPs) == 0, x.cfg.ExternalIPs && x.cfg.ExternalIPRanges == nil:
		return false
	case !x.cfg.ExternalIPs && !x.cfg.NodePorts && !x.cfg.LoadBalancers:
		return false // it forwards nothing of Services
	}
	return !x.cfg.ExternalIPs || slices.ContainsFunc(x.s.ExternalIPs, func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err == nil && x.cfg.owns(ip.Unmap()) && !x.cfg.forwardsExternal(ip.Unmap())
	})
}

func (x *serviceExpander) warnOfExternalIPs(owner Owner) {
	if x.ignoresExternalIPs() {
		x.e.warn(owner, ReasonExternalIPs, "externalIPs are not forwarded to the host: ports.externalIPs does not allow them")
	}
}

// forwardsExternal reports whether a Service may have this external address.
func (c Config) forwardsExternal(ip netip.Addr) bool {
	return c.ExternalIPs && (c.ExternalIPRanges == nil ||
		slices.ContainsFunc(c.ExternalIPRanges, func(p netip.Prefix) bool { return p.Contains(ip) }))
}

func (x *serviceExpander) nodePorts() bool {
	return x.cfg.NodePorts && (x.s.Type == "NodePort" || x.s.Type == "LoadBalancer") &&
		slices.ContainsFunc(x.s.Ports, func(p ServicePort) bool { return p.NodePort != 0 })
}

func (x *serviceExpander) balanced() bool { return balances(x.s, x.cfg) }

// balances tells whether we are the Service's load balancer.
func balances(s Service, cfg Config) bool {
	return cfg.LoadBalancers && s.Type == "LoadBalancer" && (s.LoadBalancerClass == "" || s.LoadBalancerClass == LoadBalancerClass)
}

// external are those of the Service's external addresses that are the host's own and that the config allows.
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
			// kube-proxy serves a cluster address for connections from the node itself too.
			x.forward(owner, proto, a, host, ip, p.Port, false)
		}
	}
}

func (x *serviceExpander) forward(o Owner, proto string, a netip.Addr, host int, childIP netip.Addr, child int, assigned bool) {
	if !validPort(host) {
		x.e.warn(o, ReasonInvalid, "port %d: ports are 1 to 65535", host)
		return
	}
	f := Forward{
		Bind: Bind{Proto: family(proto, a), IP: a, Port: host}, ChildIP: childIP, ChildPort: child, Owner: o, Waiting: !x.answers(a),
		Assigned: assigned, Created: x.created(), Sources: x.sources,
	}
	if x.closed != nil {
		x.e.refused = append(x.e.refused, Refusal{f, x.closed.Reason, x.closed.Message})
		return
	}
	x.e.add(f)
}

func (x *serviceExpander) created() time.Time { return seconds(x.s.Created) }

// seconds is t in the precision of the API, so that equal times are equal values.
func seconds(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.Unix(t.Unix(), 0).UTC()
}

// answers tells whether an endpoint would take a connection that comes in on a.
func (x *serviceExpander) answers(a netip.Addr) bool {
	if x.ready == nil {
		return true
	}
	local := x.s.ExternalTrafficPolicy == "Local"
	if a.Is4() {
		return x.ready.Local4 || x.ready.Ready4 && !local
	}
	return x.ready.Local6 || x.ready.Ready6 && !local
}

// health forwards the port on which kube-proxy tells outer load balancers whether this node has an endpoint. It answers
// when there is none, and says so. Source ranges do not apply: kube-proxy lets all clients use it too.
func (x *serviceExpander) health() {
	for _, a := range x.addrs {
		x.e.add(Forward{
			Bind:      Bind{Proto: family("tcp", a), IP: a, Port: x.s.HealthCheckNodePort},
			ChildPort: x.s.HealthCheckNodePort, Owner: x.owner(healthCheckPort),
			Assigned: true, Created: x.created(),
		})
	}
}

// clusterIP is the Service's cluster address of the family of a, or none.
func (x *serviceExpander) clusterIP(a netip.Addr) netip.Addr {
	for _, text := range x.s.ClusterIPs {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Is4() == a.Is4() {
			return ip
		}
	}
	return netip.Addr{}
}

// served gives those of addrs, or else of the config's bind addresses, whose family a Service has.
func served(families []string, addrs []netip.Addr, cfg Config) []netip.Addr {
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
