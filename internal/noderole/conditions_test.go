package noderole

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func silentLog() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

// watchFunc is a conditionWatch made from a function.
type watchFunc func(context.Context, conditionReporter) error

func (f watchFunc) Run(ctx context.Context, report conditionReporter) error { return f(ctx, report) }

// runConditions runs a conditionSet until the test ends.
func runConditions(t *testing.T, hub *status.Hub, watches map[string]conditionWatch) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	set := &conditionSet{watches: watches, hub: hub, log: silentLog()}
	go func() { ended <- set.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		assert.Check(t, <-ended)
	})
}

// Without watches the unit runs until the node stops.
func TestNoConditions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- (&conditionSet{}).Run(ctx, func() {}) }()
		synctest.Wait()
		assert.Equal(t, len(ended), 0)
		cancel()
		assert.NilError(t, <-ended)
	})
}

// A watch reports pending, false, a warning and true, and removes its condition. A watch that fails is reported and started
// again.
func TestConditionSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hub := status.NewHub(status.Status{}, status.Options{})
		steps := make(chan func(conditionReporter))
		starts := 0
		runConditions(t, hub, map[string]conditionWatch{
			status.ConditionDisk: watchFunc(func(ctx context.Context, report conditionReporter) error {
				for {
					select {
					case <-ctx.Done():
						return nil
					case f := <-steps:
						f(report)
					}
				}
			}),
			status.ConditionDatastore: watchFunc(func(ctx context.Context, report conditionReporter) error {
				if starts++; starts == 1 {
					return errors.New("no socket")
				}
				report.set(status.Condition{OK: true})
				<-ctx.Done()
				return nil
			}),
		})
		step := func(f func(conditionReporter)) *status.Condition {
			steps <- f
			synctest.Wait()
			s := hub.Snapshot()
			return s.Condition(status.ConditionDisk)
		}
		c := step(func(r conditionReporter) { r.set(status.Condition{Pending: true, Reason: "Starting"}) })
		assert.Assert(t, c.Pending && !c.OK)
		c = step(func(r conditionReporter) {
			r.set(status.Condition{Reason: "Full", Message: "no space", Steps: errdefs.Do(errdefs.ShowLogs, "kubelet")})
		})
		assert.Equal(t, c.Hint, "show the logs of the node: kubelet")
		version := hub.Snapshot().ResourceVersion
		step(func(r conditionReporter) { r.set(*c) })
		assert.Equal(t, hub.Snapshot().ResourceVersion, version, "an equal result has an effect")
		step(func(r conditionReporter) { r.set(status.Condition{OK: true, Warning: true, Message: "nearly full"}) })
		step(func(r conditionReporter) { r.set(status.Condition{OK: true}) })
		assert.Assert(t, step(func(r conditionReporter) { r.remove() }) == nil)

		snapshot := hub.Snapshot()
		failed := snapshot.Condition(status.ConditionDatastore)
		assert.Equal(t, failed.Message, "the condition cannot be determined: no socket")
		<-hub.Changed()
		snapshot = hub.Snapshot()
		assert.Assert(t, snapshot.Condition(status.ConditionDatastore).OK)

		var got []string
		for _, e := range hub.Events() {
			if e.Component == status.NodeEvents+"/"+status.ConditionDisk {
				got = append(got, e.Level+" "+e.From+" -> "+e.To+": "+e.Reason)
			}
		}
		assert.Assert(t, is.DeepEqual(got, []string{
			"warning pending -> not met: no space",
			"warning not met -> warning: nearly full",
			"info warning -> met: ",
		}))
	})
}
