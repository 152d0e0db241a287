package portfwd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
)

// queue holds the entries that Run has to process, and those to process at their nextTry.
type queue struct{ dirty, later map[*entry]struct{} }

type result struct {
	e    *entry
	spec port.Spec
	id   int
	add  bool
	err  error
}

// list reads the forwards of the port manager and updates the entries with them. No request may be in flight.
func (f *Forwarder) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.o.CallTimeout)
	defer cancel()
	info, err := f.o.Manager.Info(ctx)
	if err != nil {
		return fmt.Errorf("query the port manager: %w", err)
	}
	all, err := f.o.Manager.ListPorts(ctx)
	if err != nil {
		return fmt.Errorf("list forwarded ports: %w", err)
	}
	if f.o.RestoreForeign && !f.manager.listed {
		all = f.restore(ctx, all)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listNow, f.manager = false, managerState{listed: true, info: info}
	f.restriction.sent = false
	for _, e := range f.entries {
		e.have = nil
		f.queue.dirty[e] = struct{}{}
	}
	owned, others := map[string]struct{}{}, map[string]struct{}{}
	for _, st := range all {
		h := &existing{id: st.ID, spec: st.Spec, owned: f.ledger.has(st.Spec)}
		if h.owned {
			owned[specKey(st.Spec)] = struct{}{}
		} else {
			f.manager.foreign = append(f.manager.foreign, st)
			others[specKey(st.Spec)] = struct{}{}
		}
		b, ok := bindOf(st.Spec)
		if !ok {
			continue
		}
		e := f.entry(b)
		e.have = h
		if e.want == nil && h.owned {
			e.spec = h.spec
		}
		if e.want == nil || e.spec != h.spec {
			f.restriction.watched[b] = struct{}{} // its restriction stays until it is closed
		}
		if e.want != nil && e.spec == h.spec || e.reason == ReasonClash && e.state != StateFailed {
			e.nextTry = time.Time{} // it is open, or the conflicting forward is known now
		}
	}
	// Entries of the ledger that are not in the list were lost with an earlier RootlessKit, or were never created.
	f.logLedger(errors.Join(f.ledger.keep(owned), f.ledger.setOthers(others)))
	f.in.stale, f.in.remerge = true, true // the node's address may have changed
	return nil
}

// restore recreates the foreign forwards that are in the ledger and not in all. It returns all with those added.
func (f *Forwarder) restore(ctx context.Context, all []port.Status) []port.Status {
	lost := f.ledger.others()
	for _, st := range all {
		delete(lost, specKey(st.Spec))
	}
	for _, key := range sortedKeys(lost) {
		spec, ok := parseSpecKey(key)
		if !ok {
			continue
		}
		st, err := f.o.Manager.AddPort(ctx, spec)
		if err != nil {
			f.o.Log.WithError(err).Warnf("cannot restore the forward %s, which was added through RootlessKit's API", key)
			continue
		}
		f.o.Log.Infof("restored the forward %s, which was added through RootlessKit's API", key)
		all = append(all, *st)
	}
	return all
}

func (f *Forwarder) entry(b Bind) *entry {
	e, ok := f.entries[b]
	if !ok {
		e = &entry{bind: b, state: StatePending, since: time.Now()}
		f.entries[b] = e
		f.queue.dirty[e] = struct{}{}
	}
	return e
}

// refresh schedules e for immediate processing and resets its back-off.
func (f *Forwarder) refresh(e *entry) {
	e.delay, e.nextTry = 0, time.Time{}
	delete(f.queue.later, e)
	f.queue.dirty[e] = struct{}{}
	if e.state != StatePending {
		e.state, e.since = StatePending, time.Now()
	}
	e.reason, e.err, e.hint = "", nil, ""
	f.reports.changed = true
}

// dispatch starts all possible requests and returns the time of its next due call.
func (f *Forwarder) dispatch(ctx context.Context) (wake time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for e := range f.queue.later {
		if !e.nextTry.After(now) {
			delete(f.queue.later, e)
			f.queue.dirty[e] = struct{}{}
		}
	}
	for e := range f.queue.dirty {
		if f.inFlight >= f.o.Concurrency || f.listNow {
			break
		}
		delete(f.queue.dirty, e)
		if e.busy {
			continue // processed again with its result
		}
		if e.nextTry.After(now) {
			f.queue.later[e] = struct{}{}
			continue
		}
		f.step(ctx, e)
	}
	for e := range f.queue.later {
		if wake.IsZero() || e.nextTry.Before(wake) {
			wake = e.nextTry
		}
	}
	return wake
}

// step starts the next action for e.
func (f *Forwarder) step(ctx context.Context, e *entry) {
	known := e.spec.ParentPort != 0
	closed := e.want == nil || e.want.Waiting
	switch {
	case e.want != nil && e.want.Waiting && (e.have == nil || !e.have.owned):
		f.wait(e)
	case e.have == nil && e.want == nil, e.have != nil && !e.have.owned && e.want == nil:
		delete(f.entries, e.bind)
		delete(f.queue.later, e)
		f.reports.changed = true
	case e.want != nil && !known:
		// Already refused; plan checks again after each list.
	case e.have == nil && f.restriction.lacks(e):
		f.fail(e, f.restriction.fault())
	case e.have == nil:
		if err := f.ledger.add(e.spec); err != nil {
			f.fail(e, &fault{ReasonFailed, err})
			return
		}
		if e.state == StateOpen { // it was open and was removed by another program
			e.state, e.since = StatePending, time.Now()
			f.reports.changed = true
		}
		f.start(ctx, e, true)
	case !closed && e.have.spec == e.spec && !f.restriction.lacks(e):
		f.open(e)
	case !e.have.owned:
		f.fail(e, &fault{ReasonClash, fmt.Errorf("already in use by %s, which rootlessnode did not create", describe(e.have.id, e.have.spec))})
		e.recheck(f)
	case closed && !f.in.synced.mayClose(e):
		// It is not known yet whether the forward is still wanted.
		delete(f.queue.later, e)
	default:
		f.start(ctx, e, false)
	}
}

// mayClose reports whether the forward of e, which is not wanted, can be closed already. A forward of an earlier run may be
// wanted by a Service or pod that is not known yet.
func (s synced) mayClose(e *entry) bool {
	switch {
	case e.want != nil:
		return s.endpoints
	case e.owner != Owner{}:
		return true
	}
	return s.services && s.pods && s.endpoints
}

// recheck requests a new list if needed, because only a list shows whether a foreign forward is gone. The first refusal
// comes from a list.
func (e *entry) recheck(f *Forwarder) {
	if e.delay > backoffFor(ReasonClash).first {
		f.listNow = true
	}
}

func (f *Forwarder) start(ctx context.Context, e *entry, add bool) {
	e.busy = true
	f.inFlight++
	r := result{e: e, add: add, spec: e.spec}
	if !add {
		r.id, r.spec = e.have.id, e.have.spec
	}
	e.requested = r.spec
	// A request is completed even if ctx ends, so that its outcome is known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.o.CallTimeout)
	go func() {
		defer cancel()
		if add {
			var st *port.Status
			if st, r.err = f.o.Manager.AddPort(ctx, r.spec); r.err == nil {
				r.id = st.ID
			}
		} else if r.err = f.o.Manager.RemovePort(ctx, r.id); isUnknownID(r.err) {
			r.err = nil
		}
		f.results <- r
	}()
}

// handleResult records the outcome of a request.
func (f *Forwarder) handleResult(r result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := r.e
	f.inFlight--
	e.busy = false
	f.queue.dirty[e] = struct{}{}
	switch {
	case r.err == nil && r.add:
		e.have = &existing{id: r.id, spec: r.spec, owned: true}
	case r.err == nil:
		e.have = nil
		f.logLedger(f.ledger.remove(r.spec))
		f.queue.retryAfterClose(e.bind)
	default:
		f.handleFailure(e, r)
	}
}

func (f *Forwarder) handleFailure(e *entry, r result) {
	reason := reasonOf(r.err)
	if reason == ReasonUnreachable || reason == ReasonClash {
		f.listNow = true // only a list shows the current state
	}
	if r.add && reason != ReasonUnreachable {
		f.logLedger(f.ledger.remove(r.spec))
	}
	if r.add && (e.want == nil || e.spec != r.spec) {
		return // not wanted any more: nothing to report
	}
	if r.add && f.plan.repick(e, reason) {
		return
	}
	if r.add && reason == ReasonClash {
		// The list shows the owner of the conflicting forward; until then there is nothing to report.
		e.reason, e.err = reason, r.err
		e.nextTry = time.Now().Add(backoffFor(reason).first)
		return
	}
	err := r.err
	if !r.add {
		err = fmt.Errorf("remove: %w", err)
	} else if by := holder(f, e.bind); reason == ReasonInUse && by != "" {
		err = fmt.Errorf("%w (in use by %s)", err, by)
	}
	f.fail(e, &fault{reason, err})
}

// logLedger logs an error of the ledger, which does not stop forwarding.
func (f *Forwarder) logLedger(err error) {
	if err != nil {
		f.o.Log.WithError(err).Warn("update the port ledger")
	}
}

// retryAfterClose retries entries that the forward at b, or its file descriptor, may have blocked.
func (q *queue) retryAfterClose(b Bind) {
	for e := range q.later {
		if e.bind.Port == b.Port || e.reason == ReasonFiles {
			e.nextTry = time.Time{}
		}
	}
}
