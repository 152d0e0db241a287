package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// run leads u through its rounds until the group stops. group ends when the group stops, halt when u itself must.
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

// round is one go: from waiting for needs to the point where the unit is to wait for them again.
func (u *unit) round(group, halt context.Context) {
	ctx, again := context.WithCancelCause(halt)
	defer again(nil)
	u.g.mu.Lock()
	u.again = again
	if u.state != Waiting {
		u.move(Waiting, "")
	}
	u.g.mu.Unlock()

	if !u.awaitNeeds(group, ctx) {
		return
	}
	l := &life{u: u, group: group, halt: halt, ctx: ctx, readyFor: -1}
	l.lead()
	u.how = l.how
	switch {
	case l.asked && l.err == nil:
		return // For another round, or for the end.
	case l.asked && halt.Err() != nil:
		u.stuck(l.err)
		return
	case l.err == nil:
		u.to(Done, "")
	case u.after(ctx, group, l):
		return
	}
	select {
	case <-ctx.Done():
		// Taken back from failed: it may fail as often as the first time.
		u.history.failedStarts = 0
		u.history.everReady = false
	case <-group.Done():
	}
}

// after deals with a life that failed. It returns false when u is given up, true when the next round may begin.
func (u *unit) after(ctx, group context.Context, l *life) bool {
	delay := u.history.failed(u.Backoff, l.readyFor)
	tries := u.history.failedStarts
	if u.GiveUpAfter > 0 && tries >= u.GiveUpAfter && !u.history.everReady && group.Err() == nil {
		err := u.blame(fmt.Errorf("gave up after %d failed starts: %w", tries, l.err))
		u.setFault(err)
		if u.Essential {
			u.g.fail(err, true)
		}
		return false
	}
	if group.Err() != nil {
		u.to(BackingOff, fmt.Sprintf("%v; the group stops, no further start", l.err))
		return true
	}
	u.to(BackingOff, fmt.Sprintf("%v; next start in %v", l.err, delay))
	wait := time.NewTimer(delay)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	case <-group.Done():
	}
	return true
}

// stuck notes that something of u could not be ended.
func (u *unit) stuck(err error) {
	err = u.blame(err)
	u.setFault(err)
	u.g.fail(err, false)
}

func (u *unit) setFault(err error) {
	u.g.mu.Lock()
	defer u.g.mu.Unlock()
	u.fault = err
	u.move(Failed, err.Error())
}

// blame says that err is the fault of u, with the last lines of its output.
func (u *unit) blame(err error) error {
	return errdefs.Class(errdefs.ErrComponent,
		errdefs.WithLog(fmt.Errorf("%s: %w", u.Name, err), u.Name, u.out.logPath(), u.out.last()))
}

// awaitNeeds blocks until all needs of u are met and makes it Starting; false if it is not to start.
func (u *unit) awaitNeeds(group, ctx context.Context) bool {
	for {
		u.g.mu.Lock()
		changed := u.g.changed
		// Looked at and acted upon under one lock: a need that is met stays met until this unit has ended, or dies.
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

// unmet returns the needs that are not met. g.mu is held.
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

// to is move with the lock taken.
func (u *unit) to(to State, reason string) {
	u.g.mu.Lock()
	defer u.g.mu.Unlock()
	u.move(to, reason)
}

// move changes the state of u and tells everybody. g.mu is held.
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
