package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// run starts u again and again until the group stops. group ends when the group stops, halt when u itself must stop.
func (u *unit) run(group, halt context.Context) {
	defer close(u.ended)
	defer u.out.close()
	for group.Err() == nil {
		u.round(group, halt)
	}
	<-halt.Done()
	u.g.mu.Lock()
	defer u.g.mu.Unlock()
	switch u.state {
	case Failed, Done:
	default:
		u.move(Stopped, u.how)
	}
}

// round waits for the needs of u, runs it once, and returns when it has to wait for its needs again.
func (u *unit) round(group, halt context.Context) {
	ctx, again := context.WithCancelCause(halt)
	defer again(nil)
	u.g.mu.Lock()
	u.cancelRound = again
	if u.state != Waiting {
		u.move(Waiting, "")
	}
	u.g.mu.Unlock()

	if !u.awaitNeeds(group, ctx) {
		return
	}
	l := &life{u: u, group: group, halt: halt, ctx: ctx, readyFor: -1}
	l.run()
	u.how = l.how
	switch {
	case l.requested && l.err == nil: // restart or stop
		if l.readyFor >= 0 {
			u.history.everReady = true // a restart with another configuration, for example, must not end the group
		}
		return
	case l.requested && halt.Err() != nil:
		u.stopFailed(l.err)
		return
	case l.err == nil:
		u.to(Done, "")
	case u.awaitRetry(ctx, group, l):
		return
	}
	select {
	case <-ctx.Done():
		// Restart of a failed or done unit: reset the number of failures.
		u.history.failedStarts = 0
		u.history.everReady = false
	case <-group.Done():
	}
}

// awaitRetry handles a failure: it waits for the back-off delay and returns true, or makes u Failed and returns false.
func (u *unit) awaitRetry(ctx, group context.Context, l *life) bool {
	delay := u.history.failed(u.Backoff, l.readyFor)
	tries := u.history.failedStarts
	excused := u.Excuse != nil && u.Excuse()
	if u.GiveUpAfter > 0 && tries >= u.GiveUpAfter && !u.history.everReady && !excused && group.Err() == nil {
		err := u.componentError(fmt.Errorf("gave up after %d failed starts: %w", tries, l.err))
		u.setFault(err)
		if u.Essential {
			u.g.fail(err, true)
		}
		return false
	}
	if group.Err() != nil {
		u.to(BackingOff, fmt.Sprintf("%v; not restarting because the group is stopping", l.err))
		return true
	}
	u.to(BackingOff, fmt.Sprintf("%v; restarting in %v", l.err, delay))
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	case <-group.Done():
	}
	return true
}

// stopFailed records that u could not be stopped completely.
func (u *unit) stopFailed(err error) {
	err = u.componentError(err)
	u.setFault(err)
	u.g.fail(err, false)
}

func (u *unit) setFault(err error) {
	u.g.mu.Lock()
	defer u.g.mu.Unlock()
	u.fault = err
	u.move(Failed, err.Error())
}

// componentError returns err as an error of component u, with the last lines of its output.
func (u *unit) componentError(err error) error {
	e := errdefs.Component("%s: %w", u.Name, err)
	if u.out.logPath() == "" {
		return errdefs.WithLog(e, u.Name, "", u.out.last())
	}
	return errdefs.WithLog(e.Do(errdefs.ShowLogs, u.Name), u.Name, u.out.logPath(), u.out.last())
}

// awaitNeeds waits until all needs of u are met, makes it Starting and returns true. It returns false if u must not start.
func (u *unit) awaitNeeds(group, ctx context.Context) bool {
	for {
		u.g.mu.Lock()
		changed := u.g.changed
		// Check the needs and change the state under one lock: a met need then stays met, unless that unit fails.
		if group.Err() == nil && ctx.Err() == nil && len(u.unmet()) == 0 {
			u.starts++
			u.move(Starting, "")
			u.g.mu.Unlock()
			return true
		}
		u.g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-group.Done():
			return false
		}
	}
}

// unmet returns the unmet needs. The caller holds g.mu.
func (u *unit) unmet() []Need {
	var left []Need
	for i, n := range u.Needs {
		if !u.needs[i].state.meets(n.State) {
			left = append(left, n)
		}
	}
	return left
}

func (u *unit) restarts() int { return max(u.starts-1, 0) }

// to calls move with g.mu locked.
func (u *unit) to(to State, reason string) {
	u.g.mu.Lock()
	defer u.g.mu.Unlock()
	u.move(to, reason)
}

// move changes the state of u and publishes the transition. The caller holds g.mu.
func (u *unit) move(to State, reason string) {
	t := Transition{Time: time.Now(), Unit: u.Name, From: u.state, To: to, Reason: reason, PID: u.pid, Restarts: u.restarts()}
	u.state, u.since, u.reason, u.progress = to, t.Time, reason, ""
	switch to {
	case BackingOff, Failed:
		t.Tail = u.out.last()
	}
	switch to {
	case Waiting, BackingOff, Stopped, Failed, Done:
		u.pid = 0
	}
	u.g.announce()
	u.g.events.add(t)
}
