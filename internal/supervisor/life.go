package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// instance is a running process or task of a unit.
type instance interface {
	// pid returns the process ID, or 0.
	pid() int
	// gone is closed when the instance and everything that belongs to it has ended.
	gone() <-chan struct{}
	// outcome reports, once the instance is gone, how it ended, whether that is a success for a one-shot unit, and an error
	// for processes that could not be killed.
	outcome() (how string, success bool, left error)
	// declaredReady is closed when the instance declared itself ready. nil if it cannot do so.
	declaredReady() <-chan struct{}
	// stop stops the instance and waits until it is gone. It returns an error if the instance could not be stopped. how is
	// empty if it stopped normally.
	stop() (how string, err error)
}

// life is one start of a unit: from Starting until nothing of it runs.
type life struct {
	u     *unit
	group context.Context // done: do not start anything
	halt  context.Context // done: stop permanently
	ctx   context.Context // done: stop, permanently or for a restart

	requested bool          // it ended because ctx did
	err       error         // the failure, or nil
	how       string        // how it was stopped, if not normally
	readyFor  time.Duration // negative: never ready
	readyAt   time.Time
}

// run runs the unit once. It returns when the instance is gone and the results are in l.
func (l *life) run() {
	start, cancel := context.WithCancel(l.ctx)
	if l.u.StartTimeout > 0 {
		start, cancel = context.WithTimeout(l.ctx, l.u.StartTimeout)
	}
	defer cancel()
	inst, err := l.launch(start)
	if err != nil {
		l.requested = l.ctx.Err() != nil || l.group.Err() != nil
		if !l.requested {
			l.err = err
		}
		return
	}
	l.u.g.mu.Lock()
	l.u.pid = inst.pid()
	l.u.move(Running, "")
	l.u.g.mu.Unlock()
	l.follow(start, inst)
	if !l.readyAt.IsZero() {
		l.readyFor = time.Since(l.readyAt)
	}
}

// launch prepares and starts the unit. If it returns an error, nothing runs.
func (l *life) launch(start context.Context) (instance, error) {
	u := l.u
	if u.Prepare != nil {
		ctx, cancel := context.WithCancel(start)
		defer cancel()
		defer context.AfterFunc(l.group, cancel)()
		if err := u.Prepare(ctx); err != nil {
			return nil, fmt.Errorf("prepare: %w", err)
		}
	}
	if err := errors.Join(l.group.Err(), start.Err()); err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	if u.Task != nil {
		return startTask(l.ctx, u.Task, u.StopGrace, u.g.o.Log.WithField("unit", u.Name)), nil
	}
	p, err := u.Process()
	if err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	return u.g.launch(u, p)
}

// follow supervises inst until it is gone.
func (l *life) follow(start context.Context, inst instance) {
	var probes sync.WaitGroup
	defer probes.Wait()
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()

	usable, dead := make(chan error, 1), make(chan error, 1)
	probes.Go(func() { usable <- l.awaitReady(start, ctx, inst) })
	for {
		select {
		case <-inst.gone():
			l.exited(inst)
			return
		case <-l.ctx.Done():
			l.stop(inst)
			return
		case err := <-usable:
			if err != nil {
				l.abort(inst, err)
				return
			}
			if l.markReady() && l.u.Live != nil {
				probes.Go(func() { dead <- l.u.watchLiveness(ctx) })
			}
		case err := <-dead:
			if err != nil {
				l.abort(inst, err)
				return
			}
		}
	}
}

// awaitReady returns nil when inst is usable, and an error when it is not usable in time. When life is done, it returns and
// the result has no meaning.
func (l *life) awaitReady(start, life context.Context, inst instance) error {
	u := l.u
	ctx, cancel := context.WithCancel(start)
	defer cancel()
	defer context.AfterFunc(life, cancel)()

	probed := make(chan error, 1)
	var probe sync.WaitGroup
	defer probe.Wait()
	defer cancel() // Runs before probe.Wait, so that an unfinished probe ends.
	switch {
	case u.Ready != nil:
		probe.Go(func() { probed <- u.Ready(ctx) })
	case inst.declaredReady() == nil && !u.OneShot:
		return nil
	}
	select {
	case <-inst.declaredReady():
		return nil
	case err := <-probed:
		if err == nil {
			return nil
		}
		if errors.Is(start.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("not ready within %v: %w", u.StartTimeout, err)
		}
		return fmt.Errorf("not ready: %w", err)
	case <-ctx.Done():
	}
	if u.Ready != nil {
		// The last error of the probe is the most precise reason.
		if err := <-probed; err != nil {
			return fmt.Errorf("not ready within %v: %w", u.StartTimeout, err)
		}
		return nil
	}
	return fmt.Errorf("not ready within %v", u.StartTimeout)
}

// markReady makes the unit Ready, and reports whether it did. It does not when a stop was requested meanwhile.
func (l *life) markReady() bool {
	l.u.g.mu.Lock()
	defer l.u.g.mu.Unlock()
	if l.u.state != Running {
		return false
	}
	l.readyAt = time.Now()
	l.u.move(Ready, "")
	return true
}

// exited handles an instance that ended without being stopped.
func (l *life) exited(inst instance) {
	how, success, left := inst.outcome()
	if l.ctx.Err() != nil {
		// A stop was requested at the same time.
		l.requested, l.err = true, left
		l.stopping(how)
		return
	}
	if l.u.OneShot && success && left == nil {
		return
	}
	l.err = errors.Join(l.u.explain(how), left)
}

// explain returns the error for a process that ended unexpectedly. how describes its end.
func (u *unit) explain(how string) error {
	if u.Explain != nil {
		if cause := u.Explain(u.out.recent()); cause != nil {
			return fmt.Errorf("%s: %w", how, cause)
		}
	}
	return errors.New(how)
}

// abort stops an instance that is unusable because of err.
func (l *life) abort(inst instance, err error) {
	if l.ctx.Err() != nil {
		l.stop(inst)
		return
	}
	select {
	case <-inst.gone():
		// It is unusable because it ended; report that instead.
		l.exited(inst)
		return
	default:
	}
	l.stopping(err.Error())
	how, stopErr := inst.stop()
	if how != "" {
		err = fmt.Errorf("%w (%s)", err, how)
	}
	l.err = errors.Join(err, stopErr)
}

// stop stops an instance as requested by Restart or by the group.
func (l *life) stop(inst instance) {
	l.requested = true
	l.stopping("")
	if l.halt.Err() != nil && l.u.BeforeStop != nil {
		l.beforeStop(inst)
	}
	l.how, l.err = inst.stop()
	if l.how != "" {
		l.u.g.o.Log.WithField("unit", l.u.Name).Warn(l.how)
	}
}

// stopping makes the unit Stopping, unless Restart has already done so.
func (l *life) stopping(reason string) {
	l.u.g.mu.Lock()
	defer l.u.g.mu.Unlock()
	if l.u.state != Stopping {
		l.u.move(Stopping, reason)
	}
}

func (l *life) beforeStop(inst instance) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.halt), l.u.BeforeStopTimeout)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() {
		select {
		case <-inst.gone():
			cancel()
		case <-ctx.Done():
		}
	})
	if err := l.u.BeforeStop(ctx); err != nil {
		l.u.g.o.Log.WithField("unit", l.u.Name).WithError(err).Warn("BeforeStop failed")
	}
}
