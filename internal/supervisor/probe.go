package supervisor

import (
	"context"
	"fmt"
	"time"
)

// Poll slow units less often, so that polling does not load a slow machine: the pause between two tries is 1/slowdown of the
// time waited so far, at least the interval and at most slowPoll.
const (
	slowdown = 50
	slowPoll = time.Second
)

// Poll returns a function for Unit.Ready that calls try until it returns nil. The pause between two calls is interval at
// first and grows to a fiftieth of the time waited, at most one second. what names the condition, for example "kubelet
// healthz". When the context ends first, the error contains what and the last error of try. Each error is also reported as
// the unit's progress. try must have its own timeout if it can hang. interval must be positive.
func Poll(interval time.Duration, what string, try func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		began := time.Now()
		last := error(nil)
		for ctx.Err() == nil {
			err := try(ctx)
			if err == nil {
				return nil
			}
			// The error of a cancelled try says nothing about the condition.
			if last == nil || ctx.Err() == nil {
				last = err
			}
			Progress(ctx, "wait for %s: %v", what, err)
			select {
			case <-ctx.Done():
			case <-time.After(max(interval, min(time.Since(began)/slowdown, slowPoll))):
			}
		}
		if last == nil {
			last = context.Cause(ctx)
		}
		return fmt.Errorf("wait for %s: %w", what, last)
	}
}

type unitKey struct{}

// Progress sets UnitStatus.Progress of the unit that ctx belongs to, until the unit changes its state. Every function of a
// Unit that receives a context may call it, as often as it likes. With any other context it does nothing.
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

// watchLiveness calls Live periodically. It returns an error after LiveFailures consecutive failures, or nil when ctx ends.
func (u *unit) watchLiveness(ctx context.Context) error {
	tick := time.NewTicker(u.LivePeriod)
	defer tick.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := u.probeLive(ctx)
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
		Progress(ctx, "liveness probe failed (%d of %d): %v", failures, u.LiveFailures, err)
		if failures >= u.LiveFailures {
			return fmt.Errorf("liveness probe failed %d times: %w", failures, err)
		}
	}
}

func (u *unit) probeLive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, u.LiveTimeout)
	defer cancel()
	return u.Live(ctx)
}
