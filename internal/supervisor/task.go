package supervisor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// task is an instance that runs a function of this program.
type task struct {
	cancel context.CancelFunc
	grace  time.Duration
	log    logrus.FieldLogger
	ready  chan struct{}
	done   chan struct{}
	err    error // valid when done is closed
}

// startTask runs fn with a context that has the values of ctx and ends only by stop.
func startTask(ctx context.Context, fn func(context.Context, func()) error, grace time.Duration, log logrus.FieldLogger) *task {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &task{cancel: cancel, grace: grace, log: log, ready: make(chan struct{}), done: make(chan struct{})}
	var once sync.Once
	go func() {
		defer close(t.done)
		defer cancel()
		t.err = fn(ctx, func() { once.Do(func() { close(t.ready) }) })
	}()
	return t
}

func (t *task) pid() int                       { return 0 }
func (t *task) gone() <-chan struct{}          { return t.done }
func (t *task) declaredReady() <-chan struct{} { return t.ready }

func (t *task) outcome() (string, bool, error) {
	if t.err != nil {
		return t.err.Error(), false, nil
	}
	return "task returned", true, nil
}

// stop cancels the function and waits without limit for its return, because a function cannot be killed. It logs a warning
// when the grace period is over.
func (t *task) stop() (string, error) {
	t.cancel()
	if within(t.done, t.grace) {
		return "", nil
	}
	how := fmt.Sprintf("task did not return within %v of its cancellation", t.grace)
	t.log.Warn(how + "; waiting for it")
	<-t.done
	return how, nil
}

// within waits until done is closed, at most d, and reports whether it was closed.
func within(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
	}
	select {
	case <-done: // Both at once.
		return true
	default:
		return false
	}
}
