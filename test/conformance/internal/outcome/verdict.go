package outcome

import (
	"errors"
	"fmt"
)

// CompareOptions describes the run. The zero value is for a part of the set on a machine without delegation.
type CompareOptions struct {
	// Whole: the run had every spec of the set. A listed spec that is missing does not exist any more.
	Whole bool
	// Delegated: the controllers cpu, memory and pids are delegated. HybridCgroup entries must pass.
	Delegated bool
}

// Failure is a failed spec with its expectation. The expectation's Kind is empty if the spec is not listed.
type Failure struct {
	Spec        Spec
	Expectation Expectation
}

// KnownFlake is a spec that flaked and is listed as a flake.
type KnownFlake struct {
	Spec   Spec
	Reason string
}

// Verdict is the result of comparing a run with the list.
type Verdict struct {
	Passed, Failed, Skipped int

	// Expected are failures that are listed. Unexpected are failures that are not listed, or listed only for other machines.
	Expected, Unexpected []Failure
	// Passing are specs that are listed as failing but passed.
	Passing []Expectation
	// Skipping are specs that are listed as failing but skipped themselves.
	Skipping []Expectation
	// Stale and StaleFlakes are listed but not part of a whole run.
	Stale       []Expectation
	StaleFlakes []Flake
	// Ours has the known bugs of rootlessnode among Expected.
	Ours []Expectation
	// Flakes are specs that flaked and are listed as flakes. NewFlakes are not listed.
	Flakes    []KnownFlake
	NewFlakes []Spec
}

// Compare compares a run with the list. A spec that is listed as a flake and also fails at the second try is a failure.
func Compare(run Run, e Expectations, opts CompareOptions) Verdict {
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
		flake, mayFlake := flakes[s.Name]
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
			// A spec in both lists may fail or pass.
			if listed && !mayPass && !mayFlake {
				v.Passing = append(v.Passing, x)
			}
			switch {
			case s.Flaked && mayFlake:
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

// OK reports whether the run matches the list. New flakes and known bugs of rootlessnode are shown in the summary but do not matter here.
func (v Verdict) OK() bool {
	return len(v.Unexpected)+len(v.Passing)+len(v.Stale)+len(v.StaleFlakes) == 0
}

// Err returns one error for each reason why OK is false, or nil.
func (v Verdict) Err() error {
	var errs []error
	for _, f := range v.Unexpected {
		cause := "failed, but is not listed"
		if f.Expectation.Kind != "" {
			cause = "failed, but must pass because the cgroup controllers are delegated"
		}
		errs = append(errs, fmt.Errorf("spec %q: %s", f.Spec.Name, cause))
	}
	for _, x := range v.Passing {
		errs = append(errs, fmt.Errorf("spec %q: passed, but is listed as failing (%s)", x.Spec, x.Kind))
	}
	for _, x := range v.Stale {
		errs = append(errs, fmt.Errorf("spec %q: listed as failing, but not part of the set", x.Spec))
	}
	for _, x := range v.StaleFlakes {
		errs = append(errs, fmt.Errorf("spec %q: listed as a flake, but not part of the set", x.Spec))
	}
	return errors.Join(errs...)
}
