package portfwd

import "hash/fnv"

// expandStatic expands the static forwards and picks ports for those with HostPort 0.
func (p *planner) expandStatic() {
	p.static = expandStatic(p.f.o.Config, p.picked)
}

// picked returns the port that is picked for o. The ledger records it, so that it is the same after a restart.
func (p *planner) picked(o Owner) int {
	cfg := &p.f.o.Config
	if port := p.f.ledger.picked(o.String()); port >= cfg.PickFirst && port <= cfg.PickLast {
		return port
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(o.String())) // never fails
	return p.pickFrom(o, cfg.PickFirst+int(h.Sum32()%uint32(cfg.PickLast-cfg.PickFirst+1)))
}

// pickFrom returns the first port of the range, beginning at start and wrapping around, that no other forward wants.
func (p *planner) pickFrom(o Owner, start int) int {
	used := map[int]bool{}
	for b := range p.f.entries {
		used[b.Port] = true
	}
	first, n := p.f.o.Config.PickFirst, p.f.o.Config.PickLast-p.f.o.Config.PickFirst+1
	for i := range n {
		if port := first + (start-first+i)%n; !used[port] {
			p.f.logLedger(p.f.ledger.pick(o.String(), port))
			return port
		}
	}
	return start
}

// repick picks another port for e if its port was picked. It reports whether it did.
func (p *planner) repick(e *entry, reason string) bool {
	if reason != ReasonInUse && reason != ReasonClash || e.want == nil || !p.picks(e.owner) {
		return false
	}
	p.pickFrom(e.owner, e.bind.Port+1)
	p.expandStatic()
	p.f.in.stale, p.f.in.remerge = true, true
	return true
}

func (p *planner) picks(o Owner) bool {
	for _, s := range p.f.o.Config.Static {
		if s.picks() && s.owner() == o {
			return true
		}
	}
	return false
}
