package portfwd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
)

type result struct {
	e    *entry
	spec port.Spec
	id   int
	add  bool
	err  error
}

// list asks the port manager what there is and takes it as the truth. It runs with no request under way.
func (f *Forwarder) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.o.CallTimeout)
	defer cancel()
	info, err := f.o.Manager.Info(ctx)
	if err != nil {
		return fmt.Errorf("ask the port manager: %w", err)
	}
	all, err := f.o.Manager.ListPorts(ctx)
	if err != nil {
		return fmt.Errorf("list forwarded ports: %w", err)
	}
	if f.o.RestoreForeign && !f.listed {
		all = f.restore(ctx, all)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listNow, f.listed, f.info, f.foreign = false, true, info, nil
	f.restriction.sent = false
	for _, e := range f.entries {
		e.have = nil
		f.dirty[e] = struct{}{}
	}
	ours, others := map[string]struct{}{}, map[string]struct{}{}
	for _, st := range all {
		h := &held{id: st.ID, spec: st.Spec, ours: f.ledger.has(st.Spec)}
		if h.ours {
			ours[specKey(st.Spec)] = struct{}{}
		} else {
			f.foreign = append(f.foreign, st)
			others[specKey(st.Spec)] = struct{}{}
		}
		b, ok := bindOf(st.Spec)
		if !ok {
			continue
		}
		e := f.entry(b)
		e.have = h
		if e.want == nil && h.ours {
			e.spec = h.spec
		}
		if e.want == nil || e.spec != h.spec {
			f.restriction.watched[b] = struct{}{} // until it is closed, it stays as restricted as it is
		}
		if e.want != nil && e.spec == h.spec || e.reason == ReasonClash && e.state != StateFailed {
			e.nextTry = time.Time{} // it serves, or it is known now who is in the way
		}
	}
	// What is in the ledger and not there was lost with an earlier RootlessKit, or never came to be.
	if err := errors.Join(f.ledger.keep(ours), f.ledger.setOthers(others)); err != nil {
		f.o.Log.WithError(err).Warn("ledger of forwarded ports")
	}
	f.stale, f.remerge = true, true // the node's address may have changed
	return nil
}

// restore makes the forwards of others that the ledger knows and all lacks, and returns all with them.
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
			f.o.Log.WithError(err).Warnf("the forward %s, made by hand through RootlessKit's API before, is not back", key)
			continue
		}
		f.o.Log.Infof("the forward %s, made by hand through RootlessKit's API before, is back", key)
		all = append(all, *st)
	}
	return all
}

func (f *Forwarder) entry(b Bind) *entry {
	e, ok := f.entries[b]
	if !ok {
		e = &entry{bind: b, state: StatePending, since: time.Now()}
		f.entries[b] = e
		f.dirty[e] = struct{}{}
	}
	return e
}

// fresh makes e be looked at now, with its back-off forgotten.
func (f *Forwarder) fresh(e *entry) {
	e.delay, e.nextTry = 0, time.Time{}
	delete(f.later, e)
	f.dirty[e] = struct{}{}
	if e.state != StatePending {
		e.state, e.since = StatePending, time.Now()
	}
	e.reason, e.err, e.hint = "", nil, ""
	f.changed = true
}

// dispatch starts what can be started and says when to look again at the latest.
func (f *Forwarder) dispatch(ctx context.Context) (wake time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for e := range f.later {
		if !e.nextTry.After(now) {
			delete(f.later, e)
			f.dirty[e] = struct{}{}
		}
	}
	for e := range f.dirty {
		if f.inFlight >= f.o.Concurrency || f.listNow {
			break
		}
		delete(f.dirty, e)
		if e.busy {
			continue // looked at again when its result comes
		}
		if e.nextTry.After(now) {
			f.later[e] = struct{}{}
			continue
		}
		f.step(ctx, e)
	}
	for e := range f.later {
		if wake.IsZero() || e.nextTry.Before(wake) {
			wake = e.nextTry
		}
	}
	return wake
}

// step does the next thing for e.
func (f *Forwarder) step(ctx context.Context, e *entry) {
	known := e.spec.ParentPort != 0
	closed := e.want == nil || e.want.Waiting
	switch {
	case e.want != nil && e.want.Waiting && (e.have == nil || !e.have.ours):
		f.wait(e)
	case e.have == nil && e.want == nil, e.have != nil && !e.have.ours && e.want == nil:
		delete(f.entries, e.bind)
		delete(f.later, e)
		f.changed = true
	case e.want != nil && !known:
		// refused before it was asked for; plan looks again after each list
	case e.have == nil && f.unrestricted(e):
		f.fail(e, f.sourcesFault())
	case e.have == nil:
		if err := f.ledger.add(e.spec); err != nil {
			f.fail(e, &fault{ReasonFailed, err})
			return
		}
		if e.state == StateOpen { // it was, and has gone without our doing
			e.state, e.since = StatePending, time.Now()
			f.changed = true
		}
		f.start(ctx, e, true)
	case !closed && e.have.spec == e.spec && !f.unrestricted(e):
		f.open(e)
	case !e.have.ours:
		f.fail(e, &fault{ReasonClash, fmt.Errorf("held by %s, which is not ours", describe(e.have.id, e.have.spec))})
		e.recheck(f)
	case closed && !f.mayClose(e):
		// not known yet whether it is still wanted
		delete(f.later, e)
	default:
		f.start(ctx, e, false)
	}
}

// mayClose tells whether enough is known to close e, which nothing asks to be open. What an earlier run left may be
// wanted by a promise that was not told yet.
func (f *Forwarder) mayClose(e *entry) bool {
	switch {
	case e.want != nil:
		return f.synced.endpoints
	case e.owner != Owner{}:
		return true
	}
	return f.synced.all()
}

// recheck: only a new list can tell whether somebody else's forward is gone. The first refusal comes from a list.
func (e *entry) recheck(f *Forwarder) {
	if e.delay > paceOf(ReasonClash).first {
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
	e.asked = r.spec
	// A request that was begun is seen through, so that its outcome is known.
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

// take records the outcome of a request.
func (f *Forwarder) take(r result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := r.e
	f.inFlight--
	e.busy = false
	f.dirty[e] = struct{}{}
	switch {
	case r.err == nil && r.add:
		e.have = &held{id: r.id, spec: r.spec, ours: true}
	case r.err == nil:
		e.have = nil
		f.forget(r.spec)
		f.freed(e.bind)
	default:
		f.refused(e, r)
	}
}

func (f *Forwarder) refused(e *entry, r result) {
	reason := reasonOf(r.err)
	if reason == ReasonUnreachable || reason == ReasonClash {
		f.listNow = true // what there is now, only a list can tell
	}
	if r.add && reason != ReasonUnreachable {
		f.forget(r.spec)
	}
	if r.add && (e.want == nil || e.spec != r.spec) {
		return // not wanted any more: no reason to complain
	}
	if r.add && f.repick(e, reason) {
		return
	}
	if r.add && reason == ReasonClash {
		// The list tells whose it is; until then there is nothing to complain of.
		e.reason, e.err = reason, r.err
		e.nextTry = time.Now().Add(paceOf(reason).first)
		return
	}
	err := r.err
	if !r.add {
		err = fmt.Errorf("remove: %w", err)
	} else if by := f.holder(e.bind); reason == ReasonInUse && by != "" {
		err = fmt.Errorf("%w (held by %s)", err, by)
	}
	f.fail(e, &fault{reason, err})
}

func (f *Forwarder) forget(s port.Spec) {
	if err := f.ledger.remove(s); err != nil {
		f.o.Log.WithError(err).Warn("ledger of forwarded ports")
	}
}

// freed lets those try again at once that e's port, or its descriptor, may have been in the way of.
func (f *Forwarder) freed(b Bind) {
	for e := range f.later {
		if e.bind.Port == b.Port || e.reason == ReasonFiles {
			e.nextTry = time.Time{}
		}
	}
}
