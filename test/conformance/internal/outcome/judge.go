package outcome

import (
	"errors"
	"fmt"
)

// JudgeOptions says what the run was. The zero value judges a part of the set on a machine without delegation.
type JudgeOptions struct {
	// Whole: the run had every spec of the set, so that a listed one it lacks no longer exists.
	Whole bool
	// Delegated: cpu, memory and pids are all delegated, so that the HybridCgroup entries must pass.
	Delegated bool
}

// Failure is a failing spec with what the list says about it; the Kind is empty when it is not listed.
type Failure struct {
	Spec        Spec
	Expectation Expectation
}

// KnownFlake is a spec that flaked and is listed as one.
type KnownFlake struct {
	Spec   Spec
	Reason string
}

// Verdict is a run compared with the list.
type Verdict struct {
	Passed, Failed, Skipped int

	// Expected failed and is listed; Unexpected failed and is not, or is listed as failing on other machines than this.
	Expected, Unexpected []Failure
	// Passing is listed as failing, yet passed.
	Passing []Expectation
	// Skipping is listed as failing, yet skipped itself: neither proven nor disproven.
	Skipping []Expectation
	// Stale and StaleFlakes are listed, yet not part of a whole run.
	Stale       []Expectation
	StaleFlakes []Flake
	// Ours are those of Expected which are ours to mend.
	Ours []Expectation
	// Flakes failed at first and are listed as doing so; NewFlakes are not.
	Flakes    []KnownFlake
	NewFlakes []Spec
}

// Judge compares a run with the list. A spec listed as a flake that fails on its second try as well is a failure.
func Judge(run Run, e Expectations, opts JudgeOptions) Verdict {
	var v Verdict
	failing := make(map[string]Expectation, len(e.Failing))
	for _, x := range e.Failing {
		failing[x.Spec] = x
	}
	flakes := make(map[string]Flake, len(e.Flakes))
	for _, x := range e.Flakes {
		flakes[x.Spec] = x
	}
	for _, s := range run.Specs {
		x, listed := failing[s.Name]
		mustPass := listed && x.Kind == HybridCgroup && opts.Delegated
		mayPass := mustPass || x.Kind == HostKernel
		flake, wavers := flakes[s.Name]
		switch s.State {
		case Failed:
			v.Failed++
			v.fail(Failure{Spec: s, Expectation: x}, listed && !mustPass)
		case Skipped:
			v.Skipped++
			if listed {
				v.Skipping = append(v.Skipping, x)
			}
		case Passed:
			v.Passed++
			// An entry of both lists says that either may happen, and a gate must not depend on luck.
			if listed && !mayPass && !wavers {
				v.Passing = append(v.Passing, x)
			}
			switch {
			case s.Flaked && wavers:
				v.Flakes = append(v.Flakes, KnownFlake{Spec: s, Reason: flake.Reason})
			case s.Flaked:
				v.NewFlakes = append(v.NewFlakes, s)
			}
		}
	}
	if opts.Whole {
		v.findStale(run, e)
	}
	return v
}

func (v *Verdict) fail(f Failure, expected bool) {
	if !expected {
		v.Unexpected = append(v.Unexpected, f)
		return
	}
	v.Expected = append(v.Expected, f)
	if f.Expectation.Kind == Ours {
		v.Ours = append(v.Ours, f.Expectation)
	}
}

func (v *Verdict) findStale(run Run, e Expectations) {
	specs := byName(run)
	for _, x := range e.Failing {
		if _, found := specs[x.Spec]; !found {
			v.Stale = append(v.Stale, x)
		}
	}
	for _, x := range e.Flakes {
		if _, found := specs[x.Spec]; !found {
			v.StaleFlakes = append(v.StaleFlakes, x)
		}
	}
}

// OK says that the run was as the list says. New flakes and failures which are ours to mend are for people to see, and
// do not count against it.
func (v Verdict) OK() bool {
	return len(v.Unexpected)+len(v.Passing)+len(v.Stale)+len(v.StaleFlakes) == 0
}

// Err names everything that keeps OK from being true, one line each; nil when it is.
func (v Verdict) Err() error {
	var errs []error
	for _, f := range v.Unexpected {
		cause := "failed, and is not listed"
		if f.Expectation.Kind != "" {
			cause = "failed, though it must pass where the cgroup controllers are delegated"
		}
		errs = append(errs, fmt.Errorf("judge spec %q: %s", f.Spec.Name, cause))
	}
	for _, x := range v.Passing {
		errs = append(errs, fmt.Errorf("judge spec %q: passed, yet is listed as failing (%s)", x.Spec, x.Kind))
	}
	for _, x := range v.Stale {
		errs = append(errs, fmt.Errorf("judge spec %q: listed as failing, yet not part of the set", x.Spec))
	}
	for _, x := range v.StaleFlakes {
		errs = append(errs, fmt.Errorf("judge spec %q: listed as a flake, yet not part of the set", x.Spec))
	}
	return errors.Join(errs...)
}
