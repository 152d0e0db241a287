package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// instance is what runs during one life of a unit: a process or a task.
type instance interface {
	// pid of the process, or 0.
	pid() int
	// gone is closed when it has ended, with all that belongs to it.
	gone() <-chan struct{}
	// ending tells, when it is gone, how it ended; well if it counts as success for a one-shot. left is what could not be
	// removed.
	ending() (how string, well bool, left error)
	// saidReady is closed when it called itself ready; nil if it cannot.
	saidReady() <-chan struct{}
	// stop ends it and returns when it is gone, with an error when it is not. how is empty when it went as asked.
	stop() (how string, err error)
}

// life is one life of a unit: from Starting until nothing of it runs.
type life struct {
	u     *unit
	group context.Context // done: start nothing any more
	halt  context.Context // done: end for good
	ctx   context.Context // done: end, for good or for another round

	asked    bool          // it ended because ctx did
	err      error         // why it failed; nil if it did not
	how      string        // it was stopped, if not as asked
	readyFor time.Duration // negative: never ready
	readyAt  time.Time
}

// lead leads the life and returns when it is over and the answers are in l.
func (l *life) lead() {
	start, cancel := context.WithCancel(l.ctx)
	if l.u.StartTimeout > 0 {
		start, cancel = context.WithTimeout(l.ctx, l.u.StartTimeout)
	}
	defer cancel()
	inst, err := l.launch(start)
	if err != nil {
		l.asked = l.ctx.Err() != nil || l.group.Err() != nil
		if !l.asked {
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

// launch prepares and starts. Its error means that nothing runs.
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

// follow watches over inst until it is gone.
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
			l.died(inst)
			return
		case <-l.ctx.Done():
			l.end(inst)
			return
		case err := <-usable:
			if err != nil {
				l.cutOff(inst, err)
				return
			}
			if l.becomeReady() && l.u.Live != nil {
				probes.Go(func() { dead <- l.u.watch(ctx) })
			}
		case err := <-dead:
			if err != nil {
				l.cutOff(inst, err)
				return
			}
		}
	}
}

// awaitReady returns nil when inst is usable and an error when it is not in time. With life over it returns something.
func (l *life) awaitReady(start, life context.Context, inst instance) error {
	u := l.u
	ctx, cancel := context.WithCancel(start)
	defer cancel()
	defer context.AfterFunc(life, cancel)()

	probed := make(chan error, 1)
	var probe sync.WaitGroup
	defer probe.Wait()
	defer cancel() // Once more: a probe that is not needed any more has to end before it is waited for.
	switch {
	case u.Ready != nil:
		probe.Go(func() { probed <- u.Ready(ctx) })
	case inst.saidReady() == nil && !u.OneShot:
		return nil
	}
	select {
	case <-inst.saidReady():
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
		// What it says on the way out is the best reason there is.
		if err := <-probed; err != nil {
			return fmt.Errorf("not ready within %v: %w", u.StartTimeout, err)
		}
		return nil
	}
	return fmt.Errorf("not ready within %v", u.StartTimeout)
}

// becomeReady makes the unit Ready unless it was asked to end meanwhile.
func (l *life) becomeReady() bool {
	l.u.g.mu.Lock()
	defer l.u.g.mu.Unlock()
	if l.u.state != Running {
		return false
	}
	l.readyAt = time.Now()
	l.u.move(Ready, "")
	return true
}

// died is for an instance that went by itself.
func (l *life) died(inst instance) {
	how, well, left := inst.ending()
	if l.ctx.Err() != nil {
		// It was about to be ended anyway.
		l.asked, l.err = true, left
		l.stopping(how)
		return
	}
	if l.u.OneShot && well && left == nil {
		return
	}
	l.err = errors.Join(errors.New(how), left)
}

// cutOff ends an instance that is of no use, because of err.
func (l *life) cutOff(inst instance, err error) {
	if l.ctx.Err() != nil {
		l.end(inst)
		return
	}
	select {
	case <-inst.gone():
		// It is not usable because it died, and that is the better reason.
		l.died(inst)
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

// end ends an instance because it was asked for: by Restart or by the group.
func (l *life) end(inst instance) {
	l.asked = true
	l.stopping("")
	if l.halt.Err() != nil && l.u.BeforeStop != nil {
		l.beforeStop(inst)
	}
	l.how, l.err = inst.stop()
	if l.how != "" {
		l.u.g.o.Log.WithField("unit", l.u.Name).Warn(l.how)
	}
}

// stopping makes the unit Stopping, if Restart has not done so.
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
		l.u.g.o.Log.WithField("unit", l.u.Name).WithError(err).Warn("before stop")
	}
}
