package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/assert"
)

// The time.Sleep calls of this file run in a synctest bubble: they advance its clock and take no real time.

// edges are the transitions in the package comment.
var edges = strings.Fields(`
	waiting>starting starting>running running>ready starting>backoff running>backoff ready>backoff backoff>waiting
	running>stopping ready>stopping stopping>stopped stopping>waiting running>done ready>done stopping>backoff
	starting>failed running>failed stopping>failed starting>waiting failed>waiting done>waiting
	waiting>stopped starting>stopped backoff>stopped`)

func forever(ctx context.Context, ready func()) error {
	ready()
	<-ctx.Done()
	return nil
}

func neverReady(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

func broken(context.Context, func()) error { return errors.New("broken") }

func blocked(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// first returns a function that returns f at the first call and g afterwards.
func first[F any](f, g F) func() F {
	used := false
	return func() F {
		if used {
			return g
		}
		used = true
		return f
	}
}

type unstoppable struct{ done chan struct{} }

func (s unstoppable) pid() int                       { return 0 }
func (s unstoppable) gone() <-chan struct{}          { return s.done }
func (s unstoppable) outcome() (string, bool, error) { return "", false, nil }
func (s unstoppable) declaredReady() <-chan struct{} { return nil }
func (s unstoppable) stop() (string, error)          { return "killed", errors.New("still there") }

// TestLifecycle covers every transition in edges, and fails on any other.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	crashOnce := func(when func(ctx context.Context, ready func()) error) func(context.Context, func()) error {
		next := first(when, forever)
		return func(ctx context.Context, ready func()) error { return next()(ctx, ready) }
	}
	readyThen := func(err error) func(context.Context, func()) error {
		return func(_ context.Context, ready func()) error {
			ready()
			time.Sleep(time.Second)
			return err
		}
	}
	restart := func(tg *testGroup) { assert.NilError(tg.t, tg.g.Restart("u")) }
	after := func(d time.Duration) func(*testGroup) { return func(*testGroup) { time.Sleep(d) } }
	some := Process{Path: "/some"}

	covered := map[string]bool{}
	for _, tc := range []struct {
		name string
		u    Unit
		act  func(*testGroup) // nil: stop when all goroutines are blocked
		want string
		err  string
	}{
		{name: "good", u: Unit{Task: forever}, want: "waiting starting running ready stopping stopped"},
		{name: "need never met", u: Unit{Task: forever, Needs: []Need{{Name: "lame"}}}, want: "waiting stopped"},
		{name: "need running", u: Unit{Task: forever, Needs: []Need{{"lame", Running}}},
			want: "waiting starting running ready stopping stopped"},
		{name: "prepare fails once", u: func() Unit {
			next := first(errors.New("no disk"), error(nil))
			return Unit{Task: forever, Prepare: func(context.Context) error { return next() }}
		}(), act: after(time.Minute), want: "waiting starting backoff waiting starting running ready stopping stopped"},
		{name: "prepare is given up", u: Unit{Task: forever, GiveUpAfter: 1,
			Prepare: func(context.Context) error { return errors.New("no disk") }}, want: "waiting starting failed"},
		{name: "stop while preparing", u: Unit{Task: forever, Prepare: blocked}, want: "waiting starting stopped"},
		{name: "restart while preparing", u: Unit{Task: forever, Prepare: blocked}, act: restart,
			want: "waiting starting waiting starting stopped"},
		{name: "prepare hangs", u: func() Unit {
			next := first(blocked, func(context.Context) error { return nil })
			return Unit{Task: forever, StartTimeout: time.Second, Prepare: func(ctx context.Context) error { return next()(ctx) }}
		}(), act: after(time.Minute), want: "waiting starting backoff waiting starting running ready stopping stopped"},
		{name: "dies early", u: Unit{Task: crashOnce(broken)}, act: after(time.Minute),
			want: "waiting starting running backoff waiting starting running ready stopping stopped"},
		{name: "ends early", u: Unit{Task: crashOnce(func(context.Context, func()) error { return nil })}, act: after(time.Minute),
			want: "waiting starting running backoff waiting starting running ready stopping stopped"},
		{name: "dies early, given up", u: Unit{Task: broken, GiveUpAfter: 2}, act: after(time.Minute),
			want: "waiting starting running backoff waiting starting running failed"},
		{name: "dies early, essential", u: Unit{Task: broken, GiveUpAfter: 1, Essential: true}, act: after(time.Minute),
			want: "waiting starting running failed", err: "u: gave up after 1 failed starts: broken"},
		{name: "one-shot", u: Unit{OneShot: true, Task: func(context.Context, func()) error { return nil }},
			want: "waiting starting running done"},
		{name: "one-shot that is ready meanwhile", u: Unit{OneShot: true, Task: readyThen(nil)}, act: after(time.Minute),
			want: "waiting starting running ready done"},
		{name: "one-shot again", u: Unit{OneShot: true, Task: func(context.Context, func()) error { return nil }}, act: restart,
			want: "waiting starting running done waiting starting running done"},
		{name: "one-shot is cut off", u: Unit{OneShot: true, Task: neverReady}, want: "waiting starting running stopping stopped"},
		{name: "dies late", u: Unit{Task: crashOnce(readyThen(errors.New("broken")))}, act: after(time.Minute),
			want: "waiting starting running ready backoff waiting starting running ready stopping stopped"},
		{name: "not ready in time", u: Unit{Task: crashOnce(neverReady), StartTimeout: time.Second}, act: after(time.Minute),
			want: "waiting starting running stopping backoff waiting starting running ready stopping stopped"},
		{name: "not ready, given up", u: Unit{Task: neverReady, StartTimeout: time.Second, GiveUpAfter: 1}, act: after(time.Minute),
			want: "waiting starting running stopping failed"},
		{name: "stop before ready", u: Unit{Task: neverReady}, want: "waiting starting running stopping stopped"},
		{name: "not alive", u: func() Unit {
			next := first(errors.New("no answer"), error(nil))
			return Unit{Task: forever, LiveFailures: 1, Live: func(context.Context) error { return next() }}
		}(), act: after(time.Minute),
			want: "waiting starting running ready stopping backoff waiting starting running ready stopping stopped"},
		{name: "restart", u: Unit{Task: forever}, act: restart,
			want: "waiting starting running ready stopping waiting starting running ready stopping stopped"},
		{name: "restart before ready", u: Unit{Task: crashOnce(neverReady)}, act: restart,
			want: "waiting starting running stopping waiting starting running ready stopping stopped"},
		{name: "stop in backoff", u: Unit{Task: broken, Backoff: Backoff{Initial: time.Hour}},
			want: "waiting starting running backoff stopped"},
		{name: "restart in backoff", u: Unit{Task: crashOnce(broken), Backoff: Backoff{Initial: time.Hour}}, act: restart,
			want: "waiting starting running backoff waiting starting running ready stopping stopped"},
		{name: "restart of the given up", u: Unit{Task: crashOnce(broken), GiveUpAfter: 1}, act: restart,
			want: "waiting starting running failed waiting starting running ready stopping stopped"},
		{name: "restart of the given up resets the count", u: Unit{Task: broken, GiveUpAfter: 2}, act: func(tg *testGroup) {
			tg.await("u", Failed)
			restart(tg)
			time.Sleep(time.Minute)
		}, want: "waiting starting running backoff waiting starting running failed" +
			" waiting starting running backoff waiting starting running failed"},
		{name: "restart while it waits", u: Unit{Task: forever, Needs: []Need{{Name: "lame"}}}, act: restart, want: "waiting stopped"},
		{name: "cannot be ended", u: Unit{Process: func() (Process, error) { return some, nil }}, err: "u: still there",
			want: "waiting starting running ready stopping failed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tc.u.Name = "u"
				tg := newTestGroup(t, Options{}, tc.u, Unit{Name: "lame", Task: neverReady}, Unit{Name: "other", Task: forever})
				tg.g.launch = func(*unit, Process) (instance, error) { return unstoppable{make(chan struct{})}, nil }
				tg.begin()
				synctest.Wait()
				if tc.act != nil {
					tc.act(tg)
					synctest.Wait()
				}
				err := tg.end()
				if tc.err == "" {
					assert.NilError(t, err)
				} else {
					assert.Error(t, err, tc.err)
				}
				assert.Equal(t, tg.path("u"), tc.want)
				if !tc.u.Essential { // An essential unit may stop the group before the other unit has started.
					assert.Equal(t, tg.path("other"), "waiting starting running ready stopping stopped")
				}
				for _, tr := range tg.seen() {
					covered[fmt.Sprintf("%s>%s", tr.From, tr.To)] = true
				}
			})
		})
	}
	got := slices.Sorted(maps.Keys(covered))
	assert.DeepEqual(t, got, slices.Sorted(slices.Values(edges)))
}

func TestIndependentUnitsStartAndStopAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		slow := func(ctx context.Context, ready func()) error {
			time.Sleep(time.Second)
			ready()
			<-ctx.Done()
			time.Sleep(time.Second)
			return nil
		}
		units := []Unit{{Name: "top", Task: slow}}
		for i := range 10 {
			name := fmt.Sprint("u", i)
			units = append(units, Unit{Name: name, Task: slow})
			units[0].Needs = append(units[0].Needs, Need{Name: name})
		}
		tg := newTestGroup(t, Options{}, units...).begin()
		tg.await("u0", Ready)
		assert.Equal(t, time.Since(begin), time.Second)
		tg.await("top", Ready)
		assert.Equal(t, time.Since(begin), 2*time.Second)
		assert.NilError(t, tg.end())
		assert.Equal(t, time.Since(begin), 4*time.Second)
	})
}

func TestUnitContinuesWhenItsNeedDies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fail := make(chan error)
		base := func(ctx context.Context, ready func()) error {
			time.Sleep(time.Second)
			ready()
			select {
			case err := <-fail:
				return err
			case <-ctx.Done():
				return nil
			}
		}
		tg := newTestGroup(t, Options{}, Unit{Name: "base", Task: base},
			Unit{Name: "top", Task: forever, Needs: []Need{{Name: "base"}}}).begin()
		tg.await("top", Ready)
		fail <- errors.New("gone")
		tg.await("base", BackingOff)
		assert.Equal(t, tg.status("top").State, Ready)
		// On its own restart, it waits for its need again.
		assert.NilError(t, tg.g.Restart("top"))
		synctest.Wait()
		assert.Equal(t, tg.status("top").State, Waiting)
		assert.DeepEqual(t, tg.status("top").WaitingFor, []Need{{"base", Ready}})
		assert.Equal(t, tg.status("top").Why(), "needs base ready")
		tg.await("top", Ready)
		assert.NilError(t, tg.end())
	})
}

// TestRestartWithAnotherFault checks that a unit that was ready and does not start after a restart, for example because of another
// configuration, does not end the group.
func TestRestartWithAnotherFault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var starts atomic.Int32
		task := func(ctx context.Context, ready func()) error {
			if starts.Add(1) > 1 {
				return errors.New("unknown flag")
			}
			ready()
			<-ctx.Done()
			return nil
		}
		tg := newTestGroup(t, Options{}, Unit{Name: "u", Task: task, GiveUpAfter: 2, Essential: true}).begin()
		tg.await("u", Ready)
		assert.NilError(t, tg.g.Restart("u"))
		time.Sleep(time.Minute)
		assert.Assert(t, starts.Load() > 3, "%d", starts.Load())
		assert.Assert(t, tg.status("u").State != Failed)
		assert.NilError(t, tg.end())
	})
}

// TestDeathWhileStopping checks that a unit that dies while the group stops is not restarted, and becomes stopped only
// after the units that need it.
func TestDeathWhileStopping(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fail := make(chan error)
		base := func(_ context.Context, ready func()) error {
			ready()
			return <-fail
		}
		top := func(ctx context.Context, ready func()) error {
			ready()
			<-ctx.Done()
			fail <- errors.New("gone")
			time.Sleep(time.Hour)
			return nil
		}
		tg := newTestGroup(t, Options{}, Unit{Name: "base", Task: base}, Unit{Name: "top", Task: top, Needs: []Need{{Name: "base"}}}).begin()
		tg.await("top", Ready)
		assert.NilError(t, tg.end())
		assert.Equal(t, tg.path("base"), "waiting starting running ready backoff stopped")
		last := tg.seen()[len(tg.seen())-1]
		assert.Equal(t, last.Unit, "base")
	})
}

func TestLiveness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers := []error{nil, errors.New("slow"), nil, errors.New("slow"), errors.New("no answer")}
		asked := 0
		live := func(ctx context.Context) error {
			if asked++; asked <= len(answers) {
				return answers[asked-1]
			}
			return blocked(ctx) // Until LiveTimeout.
		}
		tg := newTestGroup(t, Options{}, Unit{Name: "u", Task: forever, Live: live, LivePeriod: time.Second, LiveTimeout: time.Second / 2,
			LiveFailures: 2}).begin()
		tg.await("u", Ready)
		begin := time.Now()
		tg.await("u", BackingOff)
		assert.Equal(t, time.Since(begin), 5*time.Second)
		assert.Equal(t, tg.status("u").Reason, "liveness probe failed 2 times: no answer; restarting in 100ms")
		tg.await("u", Ready)
		tg.await("u", BackingOff)
		assert.Equal(t, asked, len(answers)+2)
		assert.NilError(t, tg.end())
	})
}

func TestReadyProbeReportsWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		probe := Poll(time.Second, "healthz", func(context.Context) error { return errors.New("connection refused") })
		tg := newTestGroup(t, Options{}, Unit{Name: "u", Task: neverReady, Ready: probe, StartTimeout: 10 * time.Second}).begin()
		synctest.Wait()
		assert.Equal(t, tg.status("u").Why(), "wait for healthz: connection refused")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := tg.g.WaitFor(ctx, "u", Ready)
		assert.Error(t, err, "wait for u to be ready: context deadline exceeded; it is running: wait for healthz: connection refused")
		tg.await("u", BackingOff)
		assert.Equal(t, tg.status("u").Reason,
			"not ready within 10s: wait for healthz: connection refused; restarting in 500ms")
		assert.NilError(t, tg.end())
	})
}

func TestProbeOfATask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		probe := Poll(time.Second, "it", func(context.Context) error {
			if tries++; tries < 3 {
				return errors.New("not yet")
			}
			return nil
		})
		begin := time.Now()
		tg := newTestGroup(t, Options{}, Unit{Name: "probed", Task: neverReady, Ready: probe},
			Unit{Name: "said", Task: forever, Ready: blocked}, Unit{Name: "refused", Task: neverReady,
				Ready: func(context.Context) error { return errors.New("no") }}).begin()
		tg.await("said", Ready)
		assert.Equal(t, time.Since(begin), time.Duration(0))
		tg.await("refused", BackingOff)
		assert.Equal(t, tg.status("refused").Reason, "not ready: no; restarting in 500ms")
		tg.await("probed", Ready)
		assert.Equal(t, time.Since(begin), 2*time.Second)
		assert.NilError(t, tg.end())
	})
}

func TestTaskThatDoesNotReturnIsAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(ctx context.Context, ready func()) error {
			ready()
			<-ctx.Done()
			time.Sleep(time.Hour)
			return nil
		}
		tg := newTestGroup(t, Options{}, Unit{Name: "u", Task: slow, StopGrace: time.Second}).begin()
		tg.await("u", Ready)
		begin := time.Now()
		assert.NilError(t, tg.end())
		assert.Equal(t, time.Since(begin), time.Hour)
		assert.Equal(t, tg.status("u").Reason, "task did not return within 1s of its cancellation")
	})
}

func TestUnitThatWasReadyIsNotGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		next := first(func(_ context.Context, ready func()) error { ready(); time.Sleep(time.Second); return nil }, broken)
		tg := newTestGroup(t, Options{}, Unit{Name: "u", GiveUpAfter: 2, Essential: true,
			Task: func(ctx context.Context, ready func()) error { return next()(ctx, ready) }}).begin()
		time.Sleep(time.Hour)
		assert.Equal(t, tg.status("u").State, BackingOff)
		assert.Assert(t, tg.status("u").Restarts > 100)
		assert.NilError(t, tg.end())
	})
}

// TestExcusedFailures checks that a unit is not given up while its failures are excused, and is afterwards.
func TestExcusedFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		end := time.Now().Add(time.Hour)
		tg := newTestGroup(t, Options{}, Unit{Name: "u", GiveUpAfter: 2, Essential: true, Task: broken,
			Excuse: func() bool { return time.Now().Before(end) }}).begin()
		time.Sleep(time.Hour - time.Second)
		assert.Equal(t, tg.status("u").State, BackingOff)
		time.Sleep(time.Minute)
		assert.Equal(t, tg.status("u").State, Failed)
	})
}
