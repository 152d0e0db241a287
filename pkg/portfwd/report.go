package portfwd

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// reports collects what Run delivers to the callbacks. Only Run's goroutine uses it.
type reports struct {
	o            *Options
	outbox       []Event
	warned       map[Warning]struct{}
	changed      bool // since the last call of OnChange
	lastOnChange time.Time
}

func (r *reports) add(ev Event) { r.outbox = append(r.outbox, ev) }

// open marks e as open.
func (f *Forwarder) open(e *entry) {
	if e.state == StateOpen {
		return
	}
	e.state, e.since, e.reason, e.err, e.hint = StateOpen, time.Now(), "", nil, ""
	e.delay, e.nextTry = 0, time.Time{}
	f.reports.changed = true
	delete(f.queue.later, e)
	f.in.setDenied(e, false)
	f.o.Log.WithField("owner", e.owner.String()).Debugf("forwarding %s", e.bind)
	if e.reported != "" {
		e.reported = ""
		f.reports.add(Event{Owner: e.owner, Reason: ReasonOpen, Message: fmt.Sprintf("%s is now forwarded", e.bind)})
	}
}

// wait marks e as closed because the Service has no ready endpoint.
func (f *Forwarder) wait(e *entry) {
	delete(f.queue.later, e)
	if e.state == StateWaiting {
		return
	}
	e.state, e.since, e.reason, e.err, e.hint = StateWaiting, time.Now(), ReasonNoEndpoint, nil, ""
	e.delay, e.nextTry = 0, time.Time{}
	f.reports.changed = true
	f.o.Log.WithField("owner", e.owner.String()).Debugf("not forwarding %s: no ready endpoint", e.bind)
}

// fail marks e as failed and schedules the next attempt. The owner gets one Event for each reason.
func (f *Forwarder) fail(e *entry, err error) {
	reason := reasonOf(err)
	p := backoffFor(reason)
	if e.reason != reason {
		e.delay = 0
	}
	e.delay = min(max(2*e.delay, p.first), p.limit)
	e.nextTry = time.Now().Add(e.delay)
	f.queue.later[e] = struct{}{}
	delete(f.queue.dirty, e)
	state := StateFailed
	if reason == ReasonUnreachable {
		state = StatePending // nothing was refused yet
	}
	if e.state != state {
		e.state, e.since = state, time.Now()
	}
	e.reason, e.err = reason, err
	if reason == ReasonDenied {
		f.in.setDenied(e, true)
	}
	f.reports.changed = true
	e.hint = hintOf(reason, e.bind, f.o.Config, err.Error())
	log := f.o.Log.WithField("owner", e.owner.String())
	if reason == ReasonUnreachable || e.reported == reason {
		log.Debugf("forward %s: %v", e.bind, err)
		return
	}
	e.reported = reason
	message := fmt.Sprintf("forward %s: %v", e.bind, err)
	if n := f.o.Config.PrivilegedPortFallback; n != 0 && reason == ReasonDenied && e.owner.inCluster() {
		message += fmt.Sprintf("; port %d is forwarded instead", e.bind.Port+n)
	}
	log.Warn(message)
	f.reports.add(Event{Warning: true, Owner: e.owner, Reason: reason, Message: message, Hint: e.hint})
}

// unreachable marks all wanted forwards that are not known to be open as waiting for the port manager.
func (f *Forwarder) unreachable(err error) {
	f.o.Log.WithError(err).Debug("query the port manager")
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.entries {
		if e.want != nil && e.state == StatePending {
			e.reason, e.err = ReasonUnreachable, err
			f.reports.changed = true
		}
	}
}

// warn reports forwards that are not possible at all. Each Warning is reported once for as long as it lasts.
func (r *reports) warn(warnings []Warning) {
	now := make(map[Warning]struct{}, len(warnings))
	for _, w := range warnings {
		now[w] = struct{}{}
		if _, old := r.warned[w]; old {
			continue
		}
		r.o.Log.WithField("owner", w.Owner.String()).Warn(w.Message)
		r.add(Event{Warning: true, Owner: w.Owner, Reason: w.Reason, Message: w.Message})
	}
	r.warned = now
}

// refusal is a Refusal with the time since when Status reports it.
type refusal struct {
	Refusal
	since time.Time
}

// refuse replaces the list of refusals. Forwarder.mu is held.
func (f *Forwarder) refuse(all []Refusal) {
	if len(all)+len(f.refusals) == 0 {
		return
	}
	since := make(map[Refusal]time.Time, len(f.refusals))
	for _, r := range f.refusals {
		since[r.Refusal] = r.since
	}
	now := time.Now()
	list := make([]refusal, 0, len(all))
	for _, r := range all {
		r.Waiting = false // does not matter for a refusal
		t, old := since[r]
		if !old {
			t = now
		}
		f.reports.changed = f.reports.changed || !old
		list = append(list, refusal{r, t})
	}
	f.reports.changed = f.reports.changed || len(list) != len(f.refusals)
	slices.SortFunc(list, func(a, b refusal) int {
		return cmp.Or(compareBinds(a.Bind, b.Bind), compareOwners(a.Owner, b.Owner))
	})
	for _, list := range [][]refusal{f.refusals, list} {
		for _, r := range list {
			if r.Owner.Kind == KindService {
				f.publish.schedule(Key{r.Owner.Namespace, r.Owner.Name})
			}
		}
	}
	f.refusals = list
}

// deliver calls OnEvent and OnChange without locks, OnChange less often with more entries. It returns the time of its next due call, or the zero time.
func (r *reports) deliver(entries int) (again time.Time) {
	for _, ev := range r.outbox {
		if r.o.OnEvent != nil {
			r.o.OnEvent(ev)
		}
	}
	r.outbox = nil
	if !r.changed || r.o.OnChange == nil {
		return time.Time{}
	}
	if due := r.lastOnChange.Add(changeEvery + time.Duration(entries)*changeEach); time.Now().Before(due) {
		return due
	}
	r.changed, r.lastOnChange = false, time.Now()
	r.o.OnChange()
	return time.Time{}
}
