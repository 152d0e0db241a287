package supervisor

import (
	"context"
	"fmt"
	"time"
)

// What is long in coming is asked for less often, so that a slow machine is not kept busy by the asking: the pause between two
// tries becomes patienceShare of the time waited so far, up to slowPoll.
const (
	patienceShare = 50
	slowPoll      = time.Second
)

// Poll returns a function for Unit.Ready that calls try until it returns nil, with a pause of interval between two
// calls, which grows to a fiftieth of the time waited and at most a second. what names the thing waited for ("kubelet healthz"). When the context ends first, the error says what was waited
// for and the last reason why it was not there; every reason is also shown as the unit's progress. One try lasts as
// long as try lets it: give it a limit of its own if what it asks can hang. interval must be positive.
func Poll(interval time.Duration, what string, try func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		pause, began := time.NewTimer(interval), time.Now()
		defer pause.Stop()
		last := error(nil)
		for ctx.Err() == nil {
			err := try(ctx)
			if err == nil {
				return nil
			}
			// A try that was cut off has nothing to say about the thing it asked.
			if last == nil || ctx.Err() == nil {
				last = err
			}
			Progress(ctx, "wait for %s: %v", what, err)
			pause.Reset(max(interval, min(time.Since(began)/patienceShare, slowPoll)))
			select {
			case <-ctx.Done():
			case <-pause.C:
			}
		}
		if last == nil {
			last = context.Cause(ctx)
		}
		return fmt.Errorf("wait for %s: %w", what, last)
	}
}

type unitKey struct{}

// Progress says in a few words what the unit that ctx belongs to is busy with, for UnitStatus.Progress; it lasts until the
// unit changes its state. Every function of a Unit that is given a context may call it, at any rate; elsewhere it does
// nothing.
func Progress(ctx context.Context, format string, args ...any) {
	u, ok := ctx.Value(unitKey{}).(*unit)
	if !ok {
		return
	}
	text := fmt.Sprintf(format, args...)
	u.g.mu.Lock()
	defer u.g.mu.Unlock()
	u.progress = text
}

// watch asks Live until it failed too often in a row, and returns that as an error; nil when ctx ends first.
func (u *unit) watch(ctx context.Context) error {
	tick := time.NewTicker(u.LivePeriod)
	defer tick.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := u.askLive(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			if failures > 0 {
				Progress(ctx, "")
			}
			failures = 0
			continue
		}
		failures++
		Progress(ctx, "not alive (%d of %d): %v", failures, u.LiveFailures, err)
		if failures >= u.LiveFailures {
			return fmt.Errorf("not alive (asked %d times): %w", failures, err)
		}
	}
}

func (u *unit) askLive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, u.LiveTimeout)
	defer cancel()
	return u.Live(ctx)
}
