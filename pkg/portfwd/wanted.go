package portfwd

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Input is all that is promised at a moment.
type Input struct {
	Services []Service
	Pods     []Pod
	// Endpoints says which Services have somebody to answer. Nil: all of them.
	Endpoints map[Key]Endpoints
}

// Wanted says which forwards cfg and in ask for, sorted by port, address and protocol, and what cannot be had. It is
// pure: the same input in any order gives the same answer. Each Bind occurs once, and none that another one covers:
// static forwards go first, then those made by hand, Services and pods, each by namespace and name. Static forwards
// whose port is to be picked are left out.
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

// expansion is what one Service, one pod, or the config asks for.
type expansion struct {
	forwards []Forward
	warnings []Warning
}

func (e *expansion) warn(o Owner, reason, format string, args ...any) {
	e.warnings = append(e.warnings, Warning{Owner: o, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// add appends f unless e has its Bind already, or one that covers it.
func (e *expansion) add(f Forward) {
	for _, g := range e.forwards {
		if g.Proto == f.Proto && g.Port == f.Port && (g.IP == f.IP || g.IP.IsUnspecified()) {
			return
		}
	}
	e.forwards = append(e.forwards, f)
}

// rank orders kinds of owners: what the config or a person asked for goes before what the cluster does.
func rank(kind string) int {
	return slices.Index([]string{KindStatic, KindManual, KindService, KindPod}, kind)
}

func compareOwners(a, b Owner) int {
	return cmp.Or(cmp.Compare(rank(a.Kind), rank(b.Kind)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Port, b.Port))
}

// place is what a wildcard and a specific address share when one covers the other.
type place struct {
	proto string
	port  int
}

// merge keeps one forward of each Bind, that of the owner who comes first, and none that another one covers. The order
// of all does not matter.
func merge(all []expansion) (map[Bind]Forward, []Warning) {
	winners := map[Bind]Forward{}
	wildcards := map[place]bool{}
	var losers []Forward
	var warnings []Warning
	for _, e := range all {
		warnings = append(warnings, e.warnings...)
		for _, f := range e.forwards {
			if f.IP.IsUnspecified() {
				wildcards[place{f.Proto, f.Port}] = true
			}
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
		warnings = append(warnings, clash(f, winners[f.Bind]))
	}
	return winners, append(warnings, uncover(winners, wildcards)...)
}

func clash(f, by Forward) Warning {
	return Warning{Owner: f.Owner, Reason: ReasonClash, Message: fmt.Sprintf("%s is forwarded for %s already", f.Bind, by.Owner)}
}

// uncover settles where one listener takes all addresses and others want one of them: only one kind can be had.
func uncover(winners map[Bind]Forward, wildcards map[place]bool) (warnings []Warning) {
	if len(wildcards) == 0 {
		return nil
	}
	specific := map[place][]Forward{}
	for b, f := range winners {
		if p := (place{b.Proto, b.Port}); !b.IP.IsUnspecified() && wildcards[p] {
			specific[p] = append(specific[p], f)
		}
	}
	for p, list := range specific {
		slices.SortFunc(list, func(a, b Forward) int { return cmp.Or(compareOwners(a.Owner, b.Owner), compareBinds(a.Bind, b.Bind)) })
		wide := Bind{p.proto, netip.IPv4Unspecified(), p.port}
		if !list[0].IP.Is4() {
			wide.IP = netip.IPv6Unspecified()
		}
		wild := winners[wide]
		if compareOwners(list[0].Owner, wild.Owner) < 0 {
			delete(winners, wide)
			warnings = append(warnings, clash(wild, list[0]))
			continue
		}
		for _, f := range list {
			delete(winners, f.Bind)
			if f.Owner != wild.Owner {
				warnings = append(warnings, clash(f, wild))
			}
		}
	}
	return warnings
}

// normal fills in defaults and drops addresses that another one covers.
func (c Config) normal() Config {
	if c.BindAddresses == nil {
		c.BindAddresses = []netip.Addr{DefaultBindAddress()}
	}
	c.BindAddresses = distinct(c.BindAddresses)
	if c.PickFirst == 0 && c.PickLast == 0 {
		c.PickFirst, c.PickLast = DefaultPickFirst, DefaultPickLast
	}
	return c
}

// privileged is the first port that every program may bind, unless the host says otherwise.
const privileged = 1024

// shifted applies the offset of privileged ports.
func (c Config) shifted(port int) int {
	if port < privileged {
		return port + c.PrivilegedPortOffset
	}
	return port
}

// owns tells whether the host has this address.
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

// expandStatic: picked gives the port picked for an owner whose host port is 0; 0 if there is none.
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

// picks tells whether a port is to be picked for s.
func (s Static) picks() bool { return s.HostPort == 0 && s.Name != "" && s.ChildPort != 0 }

func family(proto string, a netip.Addr) string {
	if a.Is4() {
		return proto + "4"
	}
	return proto + "6"
}

func validPort(p int) bool { return p > 0 && p <= 65535 }
