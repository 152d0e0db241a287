package portfwd

import "hash/fnv"

// expandStatic expands the static forwards and picks ports for those with HostPort 0.
func (f *Forwarder) expandStatic() {
	f.static = expandStatic(f.o.Config, f.picked)
}

// picked returns the port that is picked for o. The ledger records it, so that it is the same after a restart.
func (f *Forwarder) picked(o Owner) int {
	if p := f.ledger.picked(o.String()); p >= f.o.Config.PickFirst && p <= f.o.Config.PickLast {
		return p
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(o.String())) // never fails
	first, n := f.o.Config.PickFirst, f.o.Config.PickLast-f.o.Config.PickFirst+1
	return f.pickFrom(o, first+int(h.Sum32()%uint32(n)))
}

// pickFrom returns the first port of the range, beginning at start and wrapping around, that no other forward wants.
func (f *Forwarder) pickFrom(o Owner, start int) int {
	used := map[int]bool{}
	for b := range f.entries {
		used[b.Port] = true
	}
	first, n := f.o.Config.PickFirst, f.o.Config.PickLast-f.o.Config.PickFirst+1
	for i := range n {
		if p := first + (start-first+i)%n; !used[p] {
			if err := f.ledger.pick(o.String(), p); err != nil {
				f.o.Log.WithError(err).Warn("update the port ledger")
			}
			return p
		}
	}
	return start
}

// repick picks another port for e if its port was picked. It reports whether it did.
func (f *Forwarder) repick(e *entry, reason string) bool {
	if reason != ReasonInUse && reason != ReasonClash || e.want == nil || !f.picks(e.owner) {
		return false
	}
	f.pickFrom(e.owner, e.bind.Port+1)
	f.expandStatic()
	f.stale, f.remerge = true, true
	return true
}

func (f *Forwarder) picks(o Owner) bool {
	for _, s := range f.o.Config.Static {
		if s.picks() && s.owner() == o {
			return true
		}
	}
	return false
}
