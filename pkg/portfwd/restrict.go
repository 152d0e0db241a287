package portfwd

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// restriction is the state of the SourceFilter. Only Run's goroutine uses it.
type restriction struct {
	f *Forwarder
	// watched are the places whose ranges may have to change.
	watched map[Bind]struct{}
	// inForce are the ranges of restricted places that the filter has acknowledged.
	inForce map[Bind]SourceRanges
	// known reports whether the filter has acknowledged ranges in this run; before that, it may still have those of an
	// earlier run. sent is reset after each list of the port manager, because the filter may have been restarted and must
	// get the ranges again.
	known, sent bool
	err         error
	delay       time.Duration
	nextTry     time.Time
}

// apply sends the wanted ranges to the filter before dispatch opens ports. It returns the time of the next attempt if it
// failed, otherwise the zero time.
func (r *restriction) apply(ctx context.Context) (again time.Time) {
	f := r.f
	f.mu.Lock()
	ready := f.o.SourceFilter != nil && f.manager.listed && f.in.synced.services
	wanted, changed := map[Bind]SourceRanges{}, !r.sent
	if ready {
		for b := range r.watched {
			s, e := r.rangesFor(b), f.entries[b]
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
		p := backoffFor(ReasonUnreachable)
		r.sent = false // the filter may have applied it in spite of the error
		r.delay = min(max(2*r.delay, p.first), p.limit)
		r.nextTry = time.Now().Add(r.delay)
		f.o.Log.WithError(r.err).Debug("source ranges of forwarded ports")
	} else {
		r.known, r.sent, r.delay, r.nextTry = true, true, 0, time.Time{}
	}
	for _, set := range []map[Bind]SourceRanges{r.inForce, wanted} {
		for b := range set {
			if e := f.entries[b]; e != nil && (r.err != nil || r.inForce[b] != wanted[b]) {
				f.queue.dirty[e] = struct{}{}
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

// rangesFor returns the ranges that b needs now. While a forward other than the wanted one is open there or about to be, its
// ranges are returned. Forwarder.mu is held.
func (r *restriction) rangesFor(b Bind) SourceRanges {
	e := r.f.entries[b]
	switch {
	case e == nil:
		return ""
	case e.have != nil && !e.have.owned && (e.want == nil || e.have.spec != e.spec):
		return "" // foreign
	case e.busy && (e.want == nil || e.requested != e.spec), e.have != nil && (e.want == nil || e.have.spec != e.spec):
		if !r.known {
			return SourcesNone // its ranges before a restart are unknown
		}
		return r.inForce[b]
	case e.want == nil:
		return ""
	}
	return e.want.Sources
}

// lacks reports whether the wanted ranges of e are not in force yet.
func (r *restriction) lacks(e *entry) bool {
	return e.want != nil && e.want.Sources != "" && r.inForce[e.bind] != e.want.Sources
}

// fault returns the reason why ranges are not in force.
func (r *restriction) fault() *fault {
	err := r.err
	if err == nil {
		err = fmt.Errorf("loadBalancerSourceRanges are not enforced yet")
	}
	return &fault{ReasonSources, err}
}
