package portfwd

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// restriction is what the Forwarder knows about its SourceFilter. Only Run's goroutine uses it.
type restriction struct {
	// watched are the places whose ranges may have to change.
	watched map[Bind]struct{}
	// inForce are the ranges that the filter has acknowledged, of places that are restricted.
	inForce map[Bind]SourceRanges
	// known reports that the filter has acknowledged ranges in this run; before, it may have those of an earlier one. It gets
	// them again after each list of the port manager, because it may have started again: sent is false then.
	known, sent bool
	err         error
	delay       time.Duration
	nextTry     time.Time
}

// restrict makes the filter's ranges agree with what is wanted, before ports are opened by dispatch. It returns when to try
// again if it failed, else the zero time.
func (f *Forwarder) restrict(ctx context.Context) (again time.Time) {
	r := &f.restriction
	f.mu.Lock()
	ready := f.o.SourceFilter != nil && f.listed && f.synced.services
	wanted, changed := map[Bind]SourceRanges{}, !r.sent
	if ready {
		for b := range r.watched {
			s, e := f.rangesFor(b), f.entries[b]
			if s != "" {
				wanted[b] = s
			} else if r.inForce[b] == "" && (e == nil || e.want == nil || e.want.Sources == "") {
				delete(r.watched, b)
			}
			changed = changed || s != r.inForce[b]
		}
	}
	f.mu.Unlock()
	switch {
	case !ready || !changed:
		return time.Time{}
	case time.Now().Before(r.nextTry):
		return r.nextTry
	}
	ctx, cancel := context.WithTimeout(ctx, f.o.CallTimeout)
	defer cancel()
	r.err = f.o.SourceFilter.SetSources(ctx, prefixesOf(wanted))
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.err != nil {
		p := paceOf(ReasonUnreachable)
		r.sent = false // it may have come to be all the same
		r.delay = min(max(2*r.delay, p.first), p.limit)
		r.nextTry = time.Now().Add(r.delay)
		f.o.Log.WithError(r.err).Debug("source ranges of forwarded ports")
	} else {
		r.known, r.sent, r.delay, r.nextTry = true, true, 0, time.Time{}
	}
	for _, set := range []map[Bind]SourceRanges{r.inForce, wanted} {
		for b := range set {
			if e := f.entries[b]; e != nil && (r.err != nil || r.inForce[b] != wanted[b]) {
				f.dirty[e] = struct{}{}
				if e.reason == ReasonSources {
					e.nextTry = time.Time{}
				}
			}
			r.watched[b] = struct{}{}
		}
	}
	if r.err == nil {
		r.inForce = wanted
	}
	return r.nextTry
}

func prefixesOf(ranges map[Bind]SourceRanges) map[Bind][]netip.Prefix {
	out := make(map[Bind][]netip.Prefix, len(ranges))
	for b, s := range ranges {
		out[b] = s.Prefixes()
	}
	return out
}

// rangesFor returns the ranges that b needs now. While another forward than the wanted one is open there, or about to be,
// it is that one's. Forwarder.mu is held.
func (f *Forwarder) rangesFor(b Bind) SourceRanges {
	e := f.entries[b]
	switch {
	case e == nil:
		return ""
	case e.have != nil && !e.have.ours && (e.want == nil || e.have.spec != e.spec):
		return "" // another program's
	case e.busy && (e.want == nil || e.asked != e.spec), e.have != nil && (e.want == nil || e.have.spec != e.spec):
		if !f.restriction.known {
			return SourcesNone // what it was before a restart is not known
		}
		return f.restriction.inForce[b]
	case e.want == nil:
		return ""
	}
	return e.want.Sources
}

// unrestricted reports whether e's ranges are not in force.
func (f *Forwarder) unrestricted(e *entry) bool {
	return e.want != nil && e.want.Sources != "" && f.restriction.inForce[e.bind] != e.want.Sources
}

// sourcesFault is why.
func (f *Forwarder) sourcesFault() *fault {
	err := f.restriction.err
	if err == nil {
		err = fmt.Errorf("loadBalancerSourceRanges are not in force yet")
	}
	return &fault{ReasonSources, err}
}
