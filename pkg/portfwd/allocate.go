package portfwd

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Ranks of forwards: static and manual forwards come before the cluster, and the API server before its users.
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

// object returns the Service or pod of o, without the port.
func (o Owner) object() Owner {
	o.Port = ""
	return o
}

// place is a port for which a wildcard and a specific address overlap.
type place struct {
	proto string
	port  int
}

// heldPort is a port number that an owner has on some address.
type heldPort struct {
	place
	owner Owner
}

// allocator decides which of several owners gets a place. Its zero value has no holders.
type allocator struct {
	holders map[Bind]Owner
	// reserve keeps places for their holders while not all of them are known.
	reserve bool
	most    int // forwards of Services and pods

	winners   map[Bind]Forward
	wildcards map[place]bool
	ports     map[heldPort]struct{}
	refused   []Refusal
}

// merge returns at most one forward for each Bind, that of the first owner in the order of compare, without forwards that a
// wildcard covers, and with at most c.most forwards of Services and pods. The order of all does not matter. The warnings are
// those in all; see rejectionWarnings for those of rejected forwards.
func (c *allocator) merge(all []expansion) (winners map[Bind]Forward, refused []Refusal, warnings []Warning) {
	c.winners, c.wildcards, c.ports = map[Bind]Forward{}, map[place]bool{}, make(map[heldPort]struct{}, len(c.holders))
	for b, o := range c.holders {
		c.ports[heldPort{place{b.Proto, b.Port}, o}] = struct{}{}
	}
	reserved := c.reserved()
	var rejected []Forward
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
				rejected = append(rejected, other)
			default:
				rejected = append(rejected, f)
			}
		}
	}
	for _, f := range rejected {
		c.reject(f, c.winners[f.Bind])
	}
	c.resolveWildcards()
	c.limit()
	return c.winners, append(refused, c.refused...), warnings
}

// compare orders two forwards of which only one is possible; see Wanted.
func (c *allocator) compare(a, b Forward) int {
	newcomer := func(f Forward) int {
		owner := f.Owner.object()
		if o, held := c.holders[f.Bind]; held && o == owner {
			return 0
		}
		if _, held := c.ports[heldPort{place{f.Proto, f.Port}, owner}]; held {
			return 1 // on another address, for example after a change of ports.bindAddresses
		}
		return 2
	}
	return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(newcomer(a), newcomer(b)), a.Created.Compare(b.Created),
		cmp.Compare(a.Owner.Namespace, b.Owner.Namespace), cmp.Compare(a.Owner.Name, b.Owner.Name), compareOwners(a.Owner, b.Owner))
}

// reserved returns a function that reports whether a place is reserved for an owner other than that of the forward.
func (c *allocator) reserved() func(Forward) bool {
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

func (c *allocator) reject(f, by Forward) {
	c.refused = append(c.refused, Refusal{f, ReasonClash, fmt.Sprintf("%s is already forwarded for %s", f.Bind, by.Owner)})
}

// resolveWildcards handles places where one forward listens on all addresses and others on specific ones. Only one of the
// two is possible.
func (c *allocator) resolveWildcards() {
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
			c.reject(wild, list[0])
			continue
		}
		for _, f := range list {
			delete(c.winners, f.Bind)
			if f.Owner != wild.Owner {
				c.reject(f, wild)
			}
		}
	}
}

// limit rejects the last forwards of Services and pods beyond c.most.
func (c *allocator) limit() {
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
	reported := map[Owner]bool{}
	for _, f := range counted[c.most:] {
		delete(c.winners, f.Bind)
		if owner := f.Owner.object(); !reported[owner] { // one for each object, because there may be very many
			reported[owner] = true
			c.refused = append(c.refused, Refusal{f, ReasonTooMany, fmt.Sprintf("limit of %d forwarded ports reached", c.most)})
		}
	}
}

// maxWarnings limits the warnings, and the names in a warning, of one Service or pod, which may have thousands of ports.
const maxWarnings = 8

// rejectionWarnings returns one warning for each rejected forward, with a limit for each Service or pod.
func rejectionWarnings(refused []Refusal) (warnings []Warning) {
	count := map[Owner]int{}
	refused = slices.DeleteFunc(slices.Clone(refused), func(r Refusal) bool { return r.Reason != ReasonClash && r.Reason != ReasonTooMany })
	slices.SortFunc(refused, func(a, b Refusal) int { return cmp.Or(compareBinds(a.Bind, b.Bind), compareOwners(a.Owner, b.Owner)) })
	for _, r := range refused {
		owner := r.Owner.object()
		switch count[owner]++; {
		case count[owner] <= maxWarnings:
			warnings = append(warnings, Warning{r.Owner, r.Reason, r.Message})
		case count[owner] == maxWarnings+1:
			warnings = append(warnings, Warning{owner, r.Reason, "further ports are not forwarded to the host"})
		}
	}
	return warnings
}
