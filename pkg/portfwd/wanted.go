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
	// Holders are the Services and pods that have a place already; their Port is empty.
	Holders map[Bind]Owner
}

// Wanted says which forwards cfg and in ask for, sorted by port, address and protocol, and what cannot be had. It is
// pure: the same input in any order gives the same answer. Each Bind occurs once, and none that another one covers. Of
// several owners that want the same place, the first in this order gets it: static forwards; those made by hand; node ports
// that the API server assigned; the owner that holds the place already; the oldest; the first by namespace and name. Static
// forwards whose port is to be picked are left out.
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
	winners, refused, warnings := (&contest{holders: in.Holders, most: cfg.MaxForwards}).merge(all)
	warnings = append(warnings, lost(refused)...)
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
	refused  []Refusal // each with one of warnings
}

// warn notes one Warning. Lists that a user of the cluster can make long are cut by the caller: see some.
func (e *expansion) warn(o Owner, reason, format string, args ...any) {
	e.warnings = append(e.warnings, Warning{Owner: o, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// some joins the first few of list.
func some(list []string) string {
	if n := len(list); n > few {
		list = append(slices.Clone(list[:few]), fmt.Sprintf("and %d more", n-few))
	}
	return strings.Join(list, ", ")
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

// Ranks of forwards: the config and manual forwards go before the cluster, and the API server before its users.
const (
	rankStatic = iota
	rankManual
	rankAssigned
	rankOther
)

func (f Forward) rank() int {
	switch {
	case f.Owner.Kind == KindStatic:
		return rankStatic
	case f.Owner.Kind == KindManual:
		return rankManual
	case f.Assigned:
		return rankAssigned
	}
	return rankOther
}

func compareOwners(a, b Owner) int {
	kind := func(o Owner) int { return slices.Index([]string{KindStatic, KindManual, KindService, KindPod}, o.Kind) }
	return cmp.Or(cmp.Compare(kind(a), kind(b)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Port, b.Port))
}

// object is the Service or pod that o is a port of.
func (o Owner) object() Owner {
	o.Port = ""
	return o
}

// place is what a wildcard and a specific address share when one covers the other.
type place struct {
	proto string
	port  int
}

// heldPort is a port number that an owner has on some address.
type heldPort struct {
	place
	owner Owner
}

// contest decides which of several owners gets a place. The zero value knows no holders.
type contest struct {
	holders map[Bind]Owner
	// reserve keeps places for their holders, of which not all are known yet.
	reserve bool
	most    int // forwards of Services and pods

	winners   map[Bind]Forward
	wildcards map[place]bool
	ports     map[heldPort]struct{}
	refused   []Refusal
}

// merge keeps one forward of each Bind, that of the owner who comes first, none that another one covers, and at most limit of
// Services and pods. The order of all does not matter. The warnings are those of all; of the owners that lost, see lost.
func (c *contest) merge(all []expansion) (winners map[Bind]Forward, refused []Refusal, warnings []Warning) {
	c.winners, c.wildcards, c.ports = map[Bind]Forward{}, map[place]bool{}, make(map[heldPort]struct{}, len(c.holders))
	for b, o := range c.holders {
		c.ports[heldPort{place{b.Proto, b.Port}, o}] = struct{}{}
	}
	reserved := c.reserved()
	var losers []Forward
	for _, e := range all {
		warnings = append(warnings, e.warnings...)
		refused = append(refused, e.refused...)
		for _, f := range e.forwards {
			if f.rank() == rankOther && reserved(f) {
				continue
			}
			if f.IP.IsUnspecified() {
				c.wildcards[place{f.Proto, f.Port}] = true
			}
			other, taken := c.winners[f.Bind]
			switch {
			case !taken:
				c.winners[f.Bind] = f
			case c.compare(f, other) < 0:
				c.winners[f.Bind] = f
				losers = append(losers, other)
			default:
				losers = append(losers, f)
			}
		}
	}
	for _, f := range losers {
		c.lose(f, c.winners[f.Bind])
	}
	c.uncover()
	c.limit()
	return c.winners, append(refused, c.refused...), warnings
}

// compare orders two forwards of which only one can be had; see Wanted.
func (c *contest) compare(a, b Forward) int {
	newcomer := func(f Forward) int {
		owner := f.Owner.object()
		if o, held := c.holders[f.Bind]; held && o == owner {
			return 0
		}
		if _, held := c.ports[heldPort{place{f.Proto, f.Port}, owner}]; held {
			return 1 // on another address, for example because ports.bindAddresses has changed
		}
		return 2
	}
	return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(newcomer(a), newcomer(b)), a.Created.Compare(b.Created),
		cmp.Compare(a.Owner.Namespace, b.Owner.Namespace), cmp.Compare(a.Owner.Name, b.Owner.Name), compareOwners(a.Owner, b.Owner))
}

// reserved returns a function that reports whether a place is reserved for another owner than that of the forward.
func (c *contest) reserved() func(Forward) bool {
	if !c.reserve || len(c.holders) == 0 {
		return func(Forward) bool { return false }
	}
	held := map[place][]Bind{}
	for b := range c.holders {
		p := place{b.Proto, b.Port}
		held[p] = append(held[p], b)
	}
	return func(f Forward) bool {
		return slices.ContainsFunc(held[place{f.Proto, f.Port}], func(b Bind) bool {
			overlaps := b.IP == f.IP || b.IP.IsUnspecified() || f.IP.IsUnspecified()
			return overlaps && c.holders[b] != f.Owner.object()
		})
	}
}

func (c *contest) lose(f, by Forward) {
	c.refused = append(c.refused, Refusal{f, ReasonClash, fmt.Sprintf("%s is forwarded for %s already", f.Bind, by.Owner)})
}

// uncover settles where one listener takes all addresses and others want one of them: only one kind can be had.
func (c *contest) uncover() {
	if len(c.wildcards) == 0 {
		return
	}
	specific := map[place][]Forward{}
	for b, f := range c.winners {
		if p := (place{b.Proto, b.Port}); !b.IP.IsUnspecified() && c.wildcards[p] {
			specific[p] = append(specific[p], f)
		}
	}
	for p, list := range specific {
		slices.SortFunc(list, func(a, b Forward) int { return cmp.Or(c.compare(a, b), compareBinds(a.Bind, b.Bind)) })
		wide := Bind{p.proto, netip.IPv4Unspecified(), p.port}
		if !list[0].IP.Is4() {
			wide.IP = netip.IPv6Unspecified()
		}
		wild := c.winners[wide]
		if c.compare(list[0], wild) < 0 {
			delete(c.winners, wide)
			c.lose(wild, list[0])
			continue
		}
		for _, f := range list {
			delete(c.winners, f.Bind)
			if f.Owner != wild.Owner {
				c.lose(f, wild)
			}
		}
	}
}

// limit refuses what Services and pods want beyond c.most: those that come last.
func (c *contest) limit() {
	var counted []Forward
	for _, f := range c.winners {
		if f.rank() > rankManual {
			counted = append(counted, f)
		}
	}
	if len(counted) <= c.most {
		return
	}
	slices.SortFunc(counted, func(a, b Forward) int { return cmp.Or(c.compare(a, b), compareBinds(a.Bind, b.Bind)) })
	told := map[Owner]bool{}
	for _, f := range counted[c.most:] {
		delete(c.winners, f.Bind)
		if owner := f.Owner.object(); !told[owner] { // one of each, since there may be very many
			told[owner] = true
			c.refused = append(c.refused, Refusal{f, ReasonTooMany, fmt.Sprintf("the limit of %d forwarded ports is reached", c.most)})
		}
	}
}

// few bounds the warnings and the names in a warning of one Service or pod, which may have thousands of ports.
const few = 8

// lost are the warnings of owners that lost places: one for each place, but not too many for one Service or pod.
func lost(refused []Refusal) (warnings []Warning) {
	count := map[Owner]int{}
	refused = slices.DeleteFunc(slices.Clone(refused), func(r Refusal) bool { return r.Reason != ReasonClash && r.Reason != ReasonTooMany })
	slices.SortFunc(refused, func(a, b Refusal) int { return cmp.Or(compareBinds(a.Bind, b.Bind), compareOwners(a.Owner, b.Owner)) })
	for _, r := range refused {
		owner := r.Owner.object()
		switch count[owner]++; {
		case count[owner] <= few:
			warnings = append(warnings, Warning{r.Owner, r.Reason, r.Message})
		case count[owner] == few+1:
			warnings = append(warnings, Warning{owner, r.Reason, "more ports are not forwarded to the host"})
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
	c.MaxForwards = cmp.Or(c.MaxForwards, DefaultMaxForwards)
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
