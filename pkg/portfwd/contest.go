package portfwd

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

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

// merge keeps one forward of each Bind, that of the owner that comes first, none that another one covers, and at most c.most of
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
