package supervisor

import (
	"errors"
	"fmt"
	"strings"
)

// check returns all errors in the definition of units, joined, or nil if they can be run.
func check(units []Unit) error {
	var errs []error
	byName := make(map[string]*Unit, len(units))
	for i := range units {
		u := &units[i]
		switch {
		case u.Name == "":
			errs = append(errs, fmt.Errorf("unit %d: no name", i))
		case byName[u.Name] != nil:
			errs = append(errs, fmt.Errorf("unit %s: name used twice", u.Name))
		}
		byName[u.Name] = u
		errs = append(errs, checkFields(u)...)
	}
	for i := range units {
		errs = append(errs, checkNeeds(&units[i], byName)...)
	}
	return errors.Join(append(errs, cycles(units, byName)...)...)
}

func checkFields(u *Unit) []error {
	var errs []error
	fault := func(bad bool, text string) {
		if bad {
			errs = append(errs, fmt.Errorf("unit %s: %s", u.Name, text))
		}
	}
	fault(u.Process == nil && u.Task == nil, "neither a process nor a task")
	fault(u.Process != nil && u.Task != nil, "both a process and a task")
	fault(u.Task != nil && u.KeepChildren, "KeepChildren is set on a task")
	fault(u.GiveUpAfter < 0, "GiveUpAfter must not be negative")
	fault(u.StartTimeout < 0 || u.StopGrace < 0 || u.BeforeStopTimeout < 0 || u.LivePeriod < 0 || u.LiveTimeout < 0 ||
		u.LiveFailures < 0, "time limits must not be negative")
	b := u.Backoff
	fault(b.Quick < 0 || b.Initial < 0 || b.ResetAfter < 0, "back-off delays must not be negative")
	fault(b.Max < b.Initial, "initial back-off delay exceeds the maximum")
	fault(!(b.Factor >= 1), "back-off factor must be at least 1")
	return errs
}

func checkNeeds(u *Unit, byName map[string]*Unit) []error {
	var errs []error
	for _, n := range u.Needs {
		to, ok := byName[n.Name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("unit %s: needs unknown unit %q", u.Name, n.Name))
		case n.State != Ready && n.State != Running && n.State != Done:
			errs = append(errs, fmt.Errorf("unit %s: needs %s in state %q: must be ready, running or done",
				u.Name, n.Name, n.State))
		case n.State == Done && !to.OneShot:
			errs = append(errs, fmt.Errorf("unit %s: needs %s done: not a one-shot unit", u.Name, n.Name))
		}
	}
	for _, name := range u.StopAfter {
		if byName[name] == nil {
			errs = append(errs, fmt.Errorf("unit %s: stops after unknown unit %q", u.Name, name))
		}
	}
	return errs
}

// cycles returns an error for each dependency cycle, written as "a -> b -> a". An arrow leads from a unit to a unit that
// is stopped after it: one that it needs, or one that names it in StopAfter.
func cycles(units []Unit, byName map[string]*Unit) []error {
	const (
		unseen = iota
		onPath
		walked
	)
	var (
		errs []error
		path []string
		mark = make(map[string]int, len(units))
		walk func(u *Unit)
		next = make(map[string][]string, len(units))
	)
	for i := range units {
		for _, n := range units[i].Needs {
			next[units[i].Name] = append(next[units[i].Name], n.Name)
		}
		for _, name := range units[i].StopAfter {
			next[name] = append(next[name], units[i].Name)
		}
	}
	walk = func(u *Unit) {
		mark[u.Name] = onPath
		path = append(path, u.Name)
		for _, name := range next[u.Name] {
			to, ok := byName[name]
			if !ok {
				continue
			}
			switch mark[name] {
			case unseen:
				walk(to)
			case onPath:
				from := 0
				for path[from] != name {
					from++
				}
				cycle := append(append([]string(nil), path[from:]...), name)
				errs = append(errs, fmt.Errorf("dependency cycle: %s", strings.Join(cycle, " -> ")))
			}
		}
		path = path[:len(path)-1]
		mark[u.Name] = walked
	}
	for i := range units {
		if mark[units[i].Name] == unseen {
			walk(&units[i])
		}
	}
	return errs
}
