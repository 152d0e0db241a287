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

func TestNewTellsEveryFault(t *testing.T) {
	t.Parallel()
	task := func(context.Context, func()) error { return nil }
	process := func() (Process, error) { return Process{}, nil }
	_, err := New([]Unit{
		{Task: task},
		{Name: "twice", Task: task},
		{Name: "twice", Task: task},
		{Name: "nothing"},
		{Name: "both", Task: task, Process: process},
		{Name: "lost", Task: task, Needs: []Need{{Name: "nobody"}}},
		{Name: "odd", Task: task, Needs: []Need{{"twice", Stopped}, {"twice", Done}}},
		{Name: "childless", Task: task, KeepChildren: true},
		{Name: "negative", Task: task, GiveUpAfter: -1, StopGrace: -1, Backoff: Backoff{Initial: -1, Max: -2, Factor: 0.5}},
		{Name: "late", Task: task, StopAfter: []string{"nobody"}},
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
		"unit childless: children are kept, but a task has none",
		"unit negative: negative number of starts to give up after",
		"unit negative: negative time limit",
		"unit negative: negative back-off",
		"unit negative: back-off that starts above its maximum",
		"unit negative: back-off that shrinks",
		`unit lost: needs unknown unit "nobody"`,
		`unit odd: needs twice in state "stopped"; only ready, running and done can be needed`,
		"unit odd: needs twice done, which is no one-shot",
		`unit late: stops after unknown unit "nobody"`,
		"units need one another: self -> self",
		"units need one another: a -> b -> c -> a",
		"units need one another: b -> c -> b",
		"units need one another: user -> used -> both ways -> user",
	})
}

// A unit in StopAfter holds up the stop, and not the start.
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
		sh := perform(t, Options{},
			Unit{Name: "network", Task: task("network", 0), StopAfter: []string{"pods"}},
			Unit{Name: "runtime", Task: task("runtime", 0)},
			Unit{Name: "pods", Task: task("pods", time.Minute), Needs: []Need{{Name: "runtime"}}, StopGrace: time.Hour},
		).begin()
		sh.await("network", Ready)
		sh.await("pods", Ready)
		assert.NilError(t, sh.end())
		assert.Equal(t, <-ended, "pods")
	})
}

func TestGroupIsUsedRight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sh := perform(t, Options{}, Unit{Name: "u", Task: forever})
		assert.Error(t, sh.g.Restart("u"), "restart unit u: the group does not run")
		assert.Error(t, sh.g.Restart("x"), "restart unit x: unknown unit")
		assert.Error(t, sh.g.WaitFor(t.Context(), "x", Ready), "wait for unit x: unknown unit")
		sh.begin()
		sh.await("u", Running)
		assert.NilError(t, sh.end())
		assert.Error(t, sh.g.Run(t.Context()), "run group: it was run before")
		assert.Error(t, sh.g.Restart("u"), "restart unit u: the group is stopping")
		assert.Error(t, sh.g.WaitFor(t.Context(), "u", Ready), "wait for u to be ready: the group has ended; the unit is stopped")
	})
}

// In a hundred random groups, full of accidents: nobody starts before its needs are met, nobody is stopped before those
// that need it, nobody starts when the group stops, nobody takes a step that is not drawn, and all come to an end.
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
	sh := perform(t, Options{}, units...).begin()
	for range r.IntN(10) {
		time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
		assert.NilError(t, sh.g.Restart(units[r.IntN(len(units))].Name))
	}
	time.Sleep(time.Duration(r.IntN(60_000)) * time.Millisecond)
	stopAt := time.Now()
	assert.NilError(t, sh.end())
	checkSteps(t, units, sh.seen(), stopAt)
}

// randomUnits returns units that need only such as come before them.
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
		// What happens is drawn here, and not in the goroutines, whose order is not ours.
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
			u.Live, u.LivePeriod, u.LiveFailures = func(context.Context) error { return errors.New("dull") }, 2*time.Second, 2
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
		return errors.New("no luck")
	}
	ready()
	if oneShot || life%3 == 0 {
		pause(life)
		if life%2 == 0 {
			return nil
		}
		return errors.New("worn out")
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
