package portfwd

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Wanted says which forwards cfg and the Services ask for, sorted by port, address and protocol, and what cannot be
// had. It is pure: the same input in any order gives the same answer. Each Bind occurs once: a static forward goes
// before a Service's, and among Services the first by namespace and name.
func Wanted(services []Service, cfg Config) ([]Forward, []Warning) {
	cfg = cfg.normal()
	all := []expansion{expandStatic(cfg)}
	for _, s := range services {
		all = append(all, expandService(s, cfg))
	}
	winners, warnings := merge(all)
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

// expansion is what one Service, or the config, asks for.
type expansion struct {
	forwards []Forward
	warnings []Warning
}

func (e *expansion) warn(o Owner, reason, format string, args ...any) {
	e.warnings = append(e.warnings, Warning{Owner: o, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// compareOwners orders static forwards before those of Services.
func compareOwners(a, b Owner) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port))
}

// merge keeps one forward of each Bind, that of the owner who comes first. The order of all does not matter.
func merge(all []expansion) (map[Bind]Forward, []Warning) {
	winners := map[Bind]Forward{}
	var losers []Forward
	var warnings []Warning
	for _, e := range all {
		warnings = append(warnings, e.warnings...)
		for _, f := range e.forwards {
			other, taken := winners[f.Bind]
			switch {
			case !taken:
				winners[f.Bind] = f
			case compareOwners(f.Owner, other.Owner) < 0:
				winners[f.Bind] = f
				losers = append(losers, other)
			default:
				losers = append(losers, f)
			}
		}
	}
	for _, f := range losers {
		warnings = append(warnings, Warning{Owner: f.Owner, Reason: ReasonClash,
			Message: fmt.Sprintf("%s is forwarded for %s already", f.Bind, winners[f.Bind].Owner)})
	}
	return winners, warnings
}

// normal fills in defaults and drops addresses that another one covers.
func (c Config) normal() Config {
	addrs := c.BindAddresses
	if len(addrs) == 0 {
		addrs = []netip.Addr{DefaultBindAddress()}
	}
	var all4, all6 bool
	for _, a := range addrs {
		all4 = all4 || a.IsUnspecified() && a.Unmap().Is4()
		all6 = all6 || a.IsUnspecified() && !a.Unmap().Is4()
	}
	kept := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		a = a.Unmap()
		covered := !a.IsUnspecified() && (a.Is4() && all4 || !a.Is4() && all6)
		if a.IsValid() && !covered && !slices.Contains(kept, a) {
			kept = append(kept, a)
		}
	}
	c.BindAddresses = kept
	return c
}

func expandStatic(cfg Config) expansion {
	var e expansion
	for _, s := range cfg.Static {
		owner := Owner{Name: s.Name}
		proto := strings.ToLower(s.Protocol)
		if owner.Name == "" {
			owner.Name = strconv.Itoa(s.HostPort) + "/" + proto
		}
		child := s.ChildPort
		if child == 0 {
			child = s.HostPort
		}
		if !validPort(s.HostPort) || !validPort(child) {
			e.warn(owner, ReasonInvalid, "port %d to %d: ports are 1 to 65535", s.HostPort, child)
			continue
		}
		if proto != "tcp" && proto != "udp" {
			e.warn(owner, ReasonProtocol, "protocol %q of port %d cannot be forwarded, only tcp and udp", s.Protocol, s.HostPort)
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

func expandService(s Service, cfg Config) expansion {
	var e expansion
	if !cfg.NodePorts || s.Type != "NodePort" && s.Type != "LoadBalancer" {
		return e
	}
	addrs := servedAddresses(s, cfg)
	owner := func(p ServicePort) Owner {
		return Owner{Namespace: s.Namespace, Name: s.Name, UID: s.UID, Port: portName(p)}
	}
	var skipped []string
	for _, p := range s.Ports {
		if p.NodePort == 0 {
			continue
		}
		proto := strings.ToLower(cmp.Or(p.Protocol, "TCP"))
		if proto != "tcp" && proto != "udp" {
			skipped = append(skipped, fmt.Sprintf("%s (%s %d)", portName(p), p.Protocol, p.NodePort))
			continue
		}
		for _, a := range addrs {
			e.forwards = append(e.forwards, Forward{
				Bind: Bind{Proto: family(proto, a), IP: a, Port: p.NodePort}, ChildPort: p.NodePort, Owner: owner(p),
			})
		}
	}
	// One warning a Service, however many of its ports it concerns.
	whole := Owner{Namespace: s.Namespace, Name: s.Name, UID: s.UID}
	if len(skipped) > 0 {
		e.warn(whole, ReasonProtocol, "not forwarded to the host: %s; only TCP and UDP can be, SCTP cannot", strings.Join(skipped, ", "))
	}
	if len(addrs) == 0 && len(skipped) < len(s.Ports) {
		e.warn(whole, ReasonFamily, "not forwarded to the host: the Service is %s only and no bind address is", strings.Join(s.IPFamilies, ", "))
	}
	return e
}

// servedAddresses gives the bind addresses of the families that the Service has.
func servedAddresses(s Service, cfg Config) []netip.Addr {
	has4 := len(s.IPFamilies) == 0 || slices.Contains(s.IPFamilies, "IPv4")
	has6 := slices.Contains(s.IPFamilies, "IPv6")
	var addrs []netip.Addr
	for _, a := range cfg.BindAddresses {
		if a.Is4() && has4 || !a.Is4() && has6 {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

func family(proto string, a netip.Addr) string {
	if a.Is4() {
		return proto + "4"
	}
	return proto + "6"
}

func validPort(p int) bool { return p > 0 && p <= 65535 }
