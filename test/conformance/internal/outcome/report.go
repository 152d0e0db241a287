package outcome

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// These are the fields used of github.com/onsi/ginkgo/v2/types.Report. Own structs rather than ginkgo's: its decoder
// turns a state it does not know into "invalid" without a word.
type (
	ginkgoReport struct {
		SuiteSucceeded             bool
		SpecialSuiteFailureReasons []string
		PreRunStats                struct{ TotalSpecs, SpecsThatWillRun int }
		SuiteConfig                struct{ DryRun bool }
		RunTime                    time.Duration
		SpecReports                []ginkgoSpec
	}
	ginkgoSpec struct {
		ContainerHierarchyTexts  []string
		ContainerHierarchyLabels [][]string
		LeafNodeType             string
		LeafNodeLocation         ginkgoLocation
		LeafNodeLabels           []string
		LeafNodeText             string
		State                    string
		RunTime                  time.Duration
		Failure                  ginkgoFailure
		NumAttempts              int
		MaxFlakeAttempts         int
		AdditionalFailures       []struct{ Failure ginkgoFailure }
	}
	ginkgoFailure struct {
		Message        string
		Location       ginkgoLocation
		ForwardedPanic string
	}
	ginkgoLocation struct {
		FileName      string
		LineNumber    int
		CustomMessage string
	}
)

// ParseReport reads what ginkgo's --json-report wrote: an array of reports, one a suite. Kept are the specs that were
// selected; those left out by a filter, and pending ones, are not part of the run. No selected spec gives an empty Run.
//
// What failed outside of any spec, and a run that was cut short, is an error. The Run is then returned as well, to be
// shown, not to be judged. The specs of a dry run are Skipped: ginkgo calls them passed, but nothing was tried.
func ParseReport(r io.Reader) (Run, error) {
	var reports []ginkgoReport
	dec := json.NewDecoder(r)
	if err := dec.Decode(&reports); err != nil {
		return Run{}, fmt.Errorf("parse ginkgo report: %w", err)
	}
	// A second value would be a second report, appended by mistake and otherwise never looked at.
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Run{}, errors.New("parse ginkgo report: more data after the array of reports")
	}
	if len(reports) == 0 {
		return Run{}, errors.New("parse ginkgo report: no report in it")
	}
	var specs []Spec
	var elapsed time.Duration
	var faults []error
	for _, rep := range reports {
		s, errs := rep.specs()
		specs, faults = append(specs, s...), append(faults, errs...)
		elapsed += rep.RunTime
	}
	return newRun(specs, elapsed, worse), errors.Join(faults...)
}

// worse decides between two specs of one report with the same name, which ginkgo allows: a failure must not hide behind
// a pass.
func worse(earlier, later Spec) Spec {
	rank := func(s Spec) int { return slices.Index([]State{Skipped, Passed, Flaked, Failed}, s.outcome()) }
	if rank(later) > rank(earlier) {
		return later
	}
	return earlier
}

// specs returns the selected specs of a report, and everything that makes it unfit to be judged.
func (rep ginkgoReport) specs() ([]Spec, []error) {
	var specs []Spec
	var faults []error
	seen := map[string]bool{}
	fault := func(format string, args ...any) {
		// Every process of a parallel run reports the same failed suite node.
		if err := fmt.Errorf(format, args...); !seen[err.Error()] {
			seen[err.Error()] = true
			faults = append(faults, err)
		}
	}
	failed := false
	for _, g := range rep.SpecReports {
		state, known := stateOf(g.State)
		switch {
		case !known:
			fault("parse ginkgo report: %s %q: unknown state %q", g.LeafNodeType, g.name(), g.State)
		case g.LeafNodeType != "It":
			if state == Failed {
				fault("run %s: %s: %s", g.LeafNodeType, g.State, shorten(g.Failure.text(), messageLimit))
			}
		case !g.selected():
		case g.name() == "":
			fault("parse ginkgo report: spec at %s: no name", g.LeafNodeLocation)
		default:
			failed = failed || state == Failed
			specs = append(specs, g.spec(state, rep.SuiteConfig.DryRun))
		}
	}
	reasons := ""
	if len(rep.SpecialSuiteFailureReasons) > 0 {
		reasons = ": " + strings.Join(rep.SpecialSuiteFailureReasons, ", ")
	}
	willRun := rep.PreRunStats.SpecsThatWillRun
	switch {
	// A spec which a timeout, an interrupt or a dead process kept from running looks like one left out by a filter, or is
	// missing: only the number announced at the start tells.
	case len(specs) < willRun:
		fault("run suite: %d of %d selected specs did not run%s", willRun-len(specs), willRun, reasons)
	case rep.SuiteSucceeded || failed || len(faults) > 0:
	// With specs but none selected, a failure is --fail-on-empty: for the caller to decide. Without, the suite never began.
	case willRun > 0 || rep.PreRunStats.TotalSpecs == 0:
		fault("run suite: ginkgo calls it failed, but no spec failed%s", reasons)
	}
	return specs, faults
}

func stateOf(ginkgo string) (State, bool) {
	switch ginkgo {
	case "passed":
		return Passed, true
	case "skipped", "pending":
		return Skipped, true
	case "failed", "aborted", "panicked", "interrupted", "timedout":
		return Failed, true
	}
	return "", false
}

// selected tells a spec that skipped itself from one ginkgo never meant to run: only the former has a reason or took time.
func (g ginkgoSpec) selected() bool {
	switch g.State {
	case "pending":
		return false
	case "skipped":
		return g.Failure.Message != "" || g.RunTime != 0
	}
	return true
}

func (g ginkgoSpec) spec(state State, dryRun bool) Spec {
	s := Spec{
		Name: g.name(), Labels: g.labels(), State: state,
		Location: g.LeafNodeLocation.String(), Duration: g.RunTime,
	}
	failure := g.Failure
	switch {
	case dryRun:
		s.State = Skipped
		failure = ginkgoFailure{Message: "dry run"}
	case state == Passed && g.NumAttempts > 1 && g.MaxFlakeAttempts > 0:
		// More attempts without MaxFlakeAttempts are MustPassRepeatedly, where every one of them passed.
		s.Flaked = true
		if len(g.AdditionalFailures) > 0 {
			failure = g.AdditionalFailures[0].Failure
		}
	}
	s.Message = shorten(failure.text(), messageLimit)
	if at := failure.Location.String(); at != "" {
		s.Location = at
	}
	return s
}

// name joins the texts as ginkgo's FullText does, which the focus of a second try is matched against.
func (g ginkgoSpec) name() string {
	texts := append(slices.Clone(g.ContainerHierarchyTexts), g.LeafNodeText)
	return strings.Join(slices.DeleteFunc(texts, func(t string) bool { return t == "" }), " ")
}

func (g ginkgoSpec) labels() []string {
	var out []string
	for _, labels := range append(slices.Clone(g.ContainerHierarchyLabels), g.LeafNodeLabels) {
		for _, l := range labels {
			if !slices.Contains(out, l) {
				out = append(out, l)
			}
		}
	}
	return out
}

// text has the panic's own words beside the message, which is just "Test Panicked".
func (f ginkgoFailure) text() string {
	if f.ForwardedPanic == "" {
		return f.Message
	}
	return f.Message + ": " + f.ForwardedPanic
}

func (l ginkgoLocation) String() string {
	switch {
	case l.CustomMessage != "":
		return l.CustomMessage
	case l.FileName == "":
		return ""
	}
	return fmt.Sprintf("%s:%d", l.FileName, l.LineNumber)
}
