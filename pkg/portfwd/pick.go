package portfwd

import "hash/fnv"

// expandStatic expands the static forwards, with a port for each that leaves the choice to us.
func (f *Forwarder) expandStatic() {
	f.static = expandStatic(f.o.Config, f.picked)
}

// picked is the port that was picked for o, or a first choice. The ledger remembers it, so that a restart finds the same.
func (f *Forwarder) picked(o Owner) int {
	if p := f.ledger.picked(o.String()); p >= f.o.Config.PickFirst && p <= f.o.Config.PickLast {
		return p
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(o.String())) // it never fails
	first, n := f.o.Config.PickFirst, f.o.Config.PickLast-f.o.Config.PickFirst+1
	return f.pickFrom(o, first+int(h.Sum32()%uint32(n)))
}

// pickFrom takes the first port from start on, round the range, that nothing of ours wants.
func (f *Forwarder) pickFrom(o Owner, start int) int {
	used := map[int]bool{}
	for b := range f.entries {
		used[b.Port] = true
	}
	first, n := f.o.Config.PickFirst, f.o.Config.PickLast-f.o.Config.PickFirst+1
	for i := range n {
		if p := first + (start-first+i)%n; !used[p] {
			if err := f.ledger.pick(o.String(), p); err != nil {
				f.o.Log.WithError(err).Warn("ledger of forwarded ports")
			}
			return p
		}
	}
	return start
}

// repick chooses another port for e, if its port was ours to choose, and tells whether it did.
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
