package portfwd

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Input is the state of the cluster from which Wanted computes forwards.
type Input struct {
	Services []Service
	Pods     []Pod
	// Endpoints are the ready endpoints of Services. Nil means that every Service has some.
	Endpoints map[Key]Endpoints
	// Holders are the Services and pods that already have a place; their Port is empty.
	Holders map[Bind]Owner
}

// Wanted returns the forwards that cfg and in request, sorted by port, address and protocol, and a Warning for each request
// that is not possible. It is pure, and the order of the input does not matter. Each Bind occurs once, and no forward is
// covered by another. If several owners want the same place, the first in this order gets it: static forwards; manual ones;
// node ports that the API server assigned; the owner that already has the place; the oldest owner; the first by namespace
// and name. Static forwards whose port is still to be picked are not returned.
func Wanted(in Input, cfg Config) ([]Forward, []Warning) {
	cfg = cfg.normal()
	all := []expansion{expandStatic(cfg, nil)}
	for _, s := range in.Services {
		var e *Endpoints
		if in.Endpoints != nil {
			found := in.Endpoints[Key{s.Namespace, s.Name}]
			e = &found
		}
		all = append(all, expandService(s, e, cfg))
	}
	for _, p := range in.Pods {
		all = append(all, expandPod(p, cfg))
	}
	winners, refused, warnings := (&allocator{holders: in.Holders, most: cfg.MaxForwards}).merge(all)
	warnings = append(warnings, rejectionWarnings(refused)...)
	forwards := make([]Forward, 0, len(winners))
	for _, f := range winners {
		forwards = append(forwards, f)
	}
	slices.SortFunc(forwards, func(a, b Forward) int { return compareBinds(a.Bind, b.Bind) })
	slices.SortFunc(warnings, func(a, b Warning) int {
		return cmp.Or(compareOwners(a.Owner, b.Owner), cmp.Compare(a.Message, b.Message))
	})
	return forwards, warnings
}

func compareBinds(a, b Bind) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), a.IP.Compare(b.IP), cmp.Compare(a.Proto, b.Proto))
}

// expansion is the result for one Service, one pod, or the config.
type expansion struct {
	forwards []Forward
	warnings []Warning
	refused  []Refusal // each has an entry in warnings
}

// warn adds one Warning. The caller shortens lists that a cluster user can make long: see joinFirst.
func (e *expansion) warn(o Owner, reason, format string, args ...any) {
	e.warnings = append(e.warnings, Warning{Owner: o, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// joinFirst joins the first entries of list and the number of the others.
func joinFirst(list []string) string {
	if n := len(list); n > maxWarnings {
		list = append(slices.Clone(list[:maxWarnings]), fmt.Sprintf("and %d more", n-maxWarnings))
	}
	return strings.Join(list, ", ")
}

// addFor adds the forward of a Service or a pod, and its replacement if the host does not permit it.
func (e *expansion) addFor(cfg Config, f Forward) {
	e.add(f)
	if _, denied := cfg.denied[f.Bind]; denied && f.Port < privileged && cfg.PrivilegedPortFallback != 0 {
		f.Port += cfg.PrivilegedPortFallback
		e.add(f)
	}
}

// add appends f unless e already has a forward at its Bind, or one that covers it.
func (e *expansion) add(f Forward) {
	for _, g := range e.forwards {
		if g.Proto == f.Proto && g.Port == f.Port && (g.IP == f.IP || g.IP.IsUnspecified()) {
			return
		}
	}
	e.forwards = append(e.forwards, f)
}

// normal sets defaults and drops addresses that another one covers.
func (c Config) normal() Config {
	if c.BindAddresses == nil {
		c.BindAddresses = []netip.Addr{DefaultBindAddress()}
	}
	c.BindAddresses = distinct(c.BindAddresses)
	if c.PickFirst == 0 && c.PickLast == 0 {
		c.PickFirst, c.PickLast = DefaultPickFirst, DefaultPickLast
	}
	c.MaxForwards = cmp.Or(c.MaxForwards, DefaultMaxForwards)
	return c
}

// privileged is the first port that unprivileged programs may bind by default.
const privileged = 1024

// shifted adds the offset of privileged ports.
func (c Config) shifted(port int) int {
	if port < privileged {
		return port + c.PrivilegedPortOffset
	}
	return port
}

// owns reports whether the host has this address.
func (c Config) owns(ip netip.Addr) bool {
	return slices.ContainsFunc(c.HostAddresses, func(h HostAddress) bool { return h.IP.Unmap() == ip })
}

func (s Static) owner() Owner {
	o := Owner{Kind: KindStatic, Name: s.Name}
	if s.Manual {
		o.Kind = KindManual
	}
	if o.Name == "" {
		o.Name = strconv.Itoa(s.HostPort) + "/" + strings.ToLower(s.Protocol)
	}
	return o
}

// expandStatic returns the static forwards. picked returns the port picked for an owner whose host port is 0, or 0.
func expandStatic(cfg Config, picked func(Owner) int) expansion {
	var e expansion
	for _, s := range cfg.Static {
		owner, proto := s.owner(), strings.ToLower(s.Protocol)
		child := cmp.Or(s.ChildPort, s.HostPort)
		if s.picks() {
			if picked != nil {
				s.HostPort = picked(owner)
			}
			if s.HostPort == 0 {
				continue
			}
		}
		if !validPort(s.HostPort) || !validPort(child) {
			e.warn(owner, ReasonInvalid, "invalid port mapping %d to %d: ports must be between 1 and 65535", s.HostPort, child)
			continue
		}
		if proto != "tcp" && proto != "udp" {
			e.warn(owner, ReasonProtocol, "protocol %q of port %d cannot be forwarded: only tcp and udp are supported", s.Protocol, s.HostPort)
			continue
		}
		addrs := cfg.BindAddresses
		if s.HostIP.IsValid() {
			addrs = []netip.Addr{s.HostIP.Unmap()}
		}
		for _, a := range addrs {
			e.forwards = append(e.forwards, Forward{
				Bind: Bind{Proto: family(proto, a), IP: a, Port: s.HostPort}, ChildIP: s.ChildIP.Unmap(), ChildPort: child, Owner: owner,
			})
		}
	}
	return e
}

// picks reports whether a port must be picked for s.
func (s Static) picks() bool { return s.HostPort == 0 && s.Name != "" && s.ChildPort != 0 }

func family(proto string, a netip.Addr) string {
	if a.Is4() {
		return proto + "4"
	}
	return proto + "6"
}

func validPort(p int) bool { return p > 0 && p <= 65535 }
