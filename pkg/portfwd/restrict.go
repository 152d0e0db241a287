package portfwd

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// restriction is the state of the SourceFilter. Only Run's goroutine uses it.
type restriction struct {
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

// restrict sends the wanted ranges to the filter before dispatch opens ports. It returns the time of the next attempt if it
// failed, otherwise the zero time.
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

// rangesFor returns the ranges that b needs now. While a forward other than the wanted one is open there or about to be, its
// ranges are returned. Forwarder.mu is held.
func (f *Forwarder) rangesFor(b Bind) SourceRanges {
	e := f.entries[b]
	switch {
	case e == nil:
		return ""
	case e.have != nil && !e.have.owned && (e.want == nil || e.have.spec != e.spec):
		return "" // foreign
	case e.busy && (e.want == nil || e.requested != e.spec), e.have != nil && (e.want == nil || e.have.spec != e.spec):
		if !f.restriction.known {
			return SourcesNone // its ranges before a restart are unknown
		}
		return f.restriction.inForce[b]
	case e.want == nil:
		return ""
	}
	return e.want.Sources
}

// unrestricted reports whether the wanted ranges of e are not in force yet.
func (f *Forwarder) unrestricted(e *entry) bool {
	return e.want != nil && e.want.Sources != "" && f.restriction.inForce[e.bind] != e.want.Sources
}

// sourcesFault returns the reason why ranges are not in force.
func (f *Forwarder) sourcesFault() *fault {
	err := f.restriction.err
	if err == nil {
		err = fmt.Errorf("loadBalancerSourceRanges are not enforced yet")
	}
	return &fault{ReasonSources, err}
}
