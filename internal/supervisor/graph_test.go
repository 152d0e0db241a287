package supervisor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/assert"
)

func TestNewReportsAllErrors(t *testing.T) {
	t.Parallel()
	task := func(context.Context, func()) error { return nil }
	process := func() (Process, error) { return Process{}, nil }
	_, err := New([]Unit{
		{Task: task},
		{Name: "twice", Task: task},
		{Name: "twice", Task: task},
		{Name: "nothing"},
		{Name: "both", Task: task, Process: process},
		{Name: "lost", Task: task, Needs: []Need{{Name: "missing"}}},
		{Name: "odd", Task: task, Needs: []Need{{"twice", Stopped}, {"twice", Done}}},
		{Name: "childless", Task: task, KeepChildren: true},
		{Name: "negative", Task: task, GiveUpAfter: -1, StopGrace: -1, Backoff: Backoff{Initial: -1, Max: -2, Factor: 0.5}},
		{Name: "late", Task: task, StopAfter: []string{"missing"}},
		{Name: "self", Task: task, Needs: []Need{{Name: "self"}}},
		{Name: "a", Task: task, Needs: []Need{{Name: "b"}}},
		{Name: "b", Task: task, Needs: []Need{{Name: "c"}, {Name: "twice"}}},
		{Name: "c", Task: task, Needs: []Need{{Name: "a"}, {Name: "b"}}},
		{Name: "user", Task: task, Needs: []Need{{Name: "used"}}},
		{Name: "used", Task: task},
		{Name: "both ways", Task: task, Needs: []Need{{Name: "user"}}, StopAfter: []string{"used"}},
	}, Options{})
	assert.DeepEqual(t, strings.Split(err.Error(), "\n"), []string{
		"unit 0: no name",
		"unit twice: name used twice",
		"unit nothing: neither a process nor a task",
		"unit both: both a process and a task",
		"unit childless: KeepChildren is set on a task",
		"unit negative: GiveUpAfter must not be negative",
		"unit negative: time limits must not be negative",
		"unit negative: back-off delays must not be negative",
		"unit negative: initial back-off delay exceeds the maximum",
		"unit negative: back-off factor must be at least 1",
		`unit lost: needs unknown unit "missing"`,
		`unit odd: needs twice in state "stopped": must be ready, running or done`,
		"unit odd: needs twice done: not a one-shot unit",
		`unit late: stops after unknown unit "missing"`,
		"dependency cycle: self -> self",
		"dependency cycle: a -> b -> c -> a",
		"dependency cycle: b -> c -> b",
		"dependency cycle: user -> used -> both ways -> user",
	})
}

// TestStopAfter checks that StopAfter delays the stop of a unit but not its start.
func TestStopAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan string, 3)
		task := func(name string, takes time.Duration) func(context.Context, func()) error {
			return func(ctx context.Context, ready func()) error {
				ready()
				<-ctx.Done()
				time.Sleep(takes) // the clock of the test
				ended <- name
				return nil
			}
		}
		tg := newTestGroup(t, Options{},
			Unit{Name: "network", Task: task("network", 0), StopAfter: []string{"pods"}},
			Unit{Name: "runtime", Task: task("runtime", 0)},
			Unit{Name: "pods", Task: task("pods", time.Minute), Needs: []Need{{Name: "runtime"}}, StopGrace: time.Hour},
		).begin()
		tg.await("network", Ready)
		tg.await("pods", Ready)
		assert.NilError(t, tg.end())
		assert.Equal(t, <-ended, "pods")
	})
}

func TestGroupMisuse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tg := newTestGroup(t, Options{}, Unit{Name: "u", Task: forever})
		assert.Error(t, tg.g.Restart("u"), "restart unit u: the group is not running")
		assert.Error(t, tg.g.Restart("x"), "restart unit x: unknown unit")
		assert.Error(t, tg.g.WaitFor(t.Context(), "x", Ready), "wait for unit x: unknown unit")
		tg.begin()
		tg.await("u", Running)
		assert.NilError(t, tg.end())
		assert.Error(t, tg.g.Run(t.Context()), "run group: already run")
		assert.Error(t, tg.g.Restart("u"), "restart unit u: the group is stopping")
		assert.Error(t, tg.g.WaitFor(t.Context(), "u", Ready), "wait for u to be ready: the group has ended; the unit is stopped")
	})
}

// TestRandomGroups runs 100 random groups with random failures. No unit starts before its needs are met or while the group
// stops, no unit is stopped before the units that need it, every transition is a documented one, and all units end.
func TestRandomGroups(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomGroup(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func randomGroup(t *testing.T, r *rand.Rand) {
	units := randomUnits(r)
	tg := newTestGroup(t, Options{}, units...).begin()
	for range r.IntN(10) {
		time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
		assert.NilError(t, tg.g.Restart(units[r.IntN(len(units))].Name))
	}
	time.Sleep(time.Duration(r.IntN(60_000)) * time.Millisecond)
	stopAt := time.Now()
	assert.NilError(t, tg.end())
	checkSteps(t, units, tg.seen(), stopAt)
}

// randomUnits returns units that need only units created before them.
func randomUnits(r *rand.Rand) []Unit {
	units := make([]Unit, 2+r.IntN(12))
	for i := range units {
		u := Unit{Name: fmt.Sprint("u", i), OneShot: r.IntN(4) == 0, StartTimeout: 5 * time.Second}
		for j := range i {
			if r.IntN(3) > 0 {
				continue
			}
			state := []State{Ready, Running}[r.IntN(2)]
			if units[j].OneShot && r.IntN(2) == 0 {
				state = Done
			}
			u.Needs = append(u.Needs, Need{units[j].Name, state})
		}
		// The random numbers are drawn here and not in the goroutines, whose order is not deterministic.
		lives := make([]int, 50)
		for k := range lives {
			lives[k] = r.IntN(10_000)
		}
		starts, isOneShot := 0, u.OneShot
		u.Task = func(ctx context.Context, ready func()) error {
			life := lives[starts%len(lives)]
			starts++
			return randomTask(ctx, ready, life, isOneShot)
		}
		if r.IntN(4) == 0 {
			u.Live, u.LivePeriod, u.LiveFailures = func(context.Context) error { return errors.New("unhealthy") }, 2*time.Second, 2
		}
		units[i] = u
	}
	r.Shuffle(len(units), func(i, j int) { units[i], units[j] = units[j], units[i] })
	return units
}

func randomTask(ctx context.Context, ready func(), life int, oneShot bool) error {
	pause := func(ms int) bool {
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
			return true
		case <-ctx.Done():
			time.Sleep(time.Duration(life%500) * time.Millisecond)
			return false
		}
	}
	if !pause(life % 7000) { // Now and then past StartTimeout.
		return nil
	}
	if life%5 == 0 {
		return errors.New("failed to start")
	}
	ready()
	if oneShot || life%3 == 0 {
		pause(life)
		if life%2 == 0 {
			return nil
		}
		return errors.New("failed")
	}
	<-ctx.Done()
	return nil
}

func checkSteps(t *testing.T, units []Unit, steps []Transition, stopAt time.Time) {
	t.Helper()
	is := map[string]State{}
	byName := map[string]Unit{}
	neededBy := map[string][]string{}
	for _, u := range units {
		is[u.Name], byName[u.Name] = Waiting, u
		for _, n := range u.Needs {
			neededBy[n.Name] = append(neededBy[n.Name], u.Name)
		}
	}
	ended := func(s State) bool { return s == Stopped || s == Failed || s == Done }
	for i, tr := range steps {
		assert.Equal(t, tr.From, is[tr.Unit], "step %d: %+v", i, tr)
		assert.Assert(t, slices.Contains(edges, fmt.Sprintf("%s>%s", tr.From, tr.To)), "step %d: %+v", i, tr)
		switch {
		case tr.To == Starting:
			assert.Assert(t, !tr.Time.After(stopAt), "step %d: %+v", i, tr)
			for _, n := range byName[tr.Unit].Needs {
				assert.Assert(t, is[n.Name].meets(n.State), "step %d: %+v: %s is %s", i, tr, n, is[n.Name])
			}
		case tr.To == Stopped, tr.To == Stopping && tr.Reason == "":
			for _, d := range neededBy[tr.Unit] {
				assert.Assert(t, ended(is[d]), "step %d: %+v: %s is %s", i, tr, d, is[d])
			}
		}
		is[tr.Unit] = tr.To
	}
	for name, state := range is {
		assert.Assert(t, ended(state), "%s is %s", name, state)
	}
}
