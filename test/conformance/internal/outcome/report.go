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

// These are the used fields of github.com/onsi/ginkgo/v2/types.Report. They are separate structs, because ginkgo's decoder turns unknown
// states into "invalid" without an error.
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

// ParseReport parses the output of ginkgo's --json-report, an array with one report per suite. The Run has the selected specs, without
// pending specs and those that a filter excludes. It is empty if no spec was selected.
//
// ParseReport returns an error for failures outside of specs, and for an interrupted run. It also returns the Run then, which should be shown
// but not compared. The specs of a dry run are Skipped, although ginkgo reports them as passed.
func ParseReport(r io.Reader) (Run, error) {
	var reports []ginkgoReport
	dec := json.NewDecoder(r)
	if err := dec.Decode(&reports); err != nil {
		return Run{}, fmt.Errorf("parse ginkgo report: %w", err)
	}
	// A second value would be another report that was appended by mistake.
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Run{}, errors.New("parse ginkgo report: more data after the array of reports")
	}
	if len(reports) == 0 {
		return Run{}, errors.New("parse ginkgo report: it has no report")
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

// worse returns the spec with the worse state. It is for specs of a report with the same name, which ginkgo allows.
func worse(earlier, later Spec) Spec {
	rank := func(s Spec) int { return slices.Index([]State{Skipped, Passed, Flaked, Failed}, s.outcome()) }
	if rank(later) > rank(earlier) {
		return later
	}
	return earlier
}

// specs returns the selected specs of a report, and the errors that make it incomplete.
func (rep ginkgoReport) specs() ([]Spec, []error) {
	var specs []Spec
	var faults []error
	seen := map[string]bool{}
	fault := func(format string, args ...any) {
		// In a parallel run every process reports the same failed suite node.
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
	// A spec that did not run because of a timeout, an interrupt or a dead process looks like a filtered spec, or is missing. Only the
	// number of specs that ginkgo reports at the start shows it.
	case len(specs) < willRun:
		fault("run suite: %d of %d selected specs did not run%s", willRun-len(specs), willRun, reasons)
	case rep.SuiteSucceeded || failed || len(faults) > 0:
	// If there are specs but none is selected, the failure is due to --fail-on-empty, which the caller handles. Without specs, the suite
	// did not start.
	case willRun > 0 || rep.PreRunStats.TotalSpecs == 0:
		fault("run suite: ginkgo reports a failure, but no spec failed%s", reasons)
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

// selected reports whether a skipped spec skipped itself, in contrast to a spec that was not selected. Only the former has a reason or took
// time.
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
		// More attempts without MaxFlakeAttempts are from MustPassRepeatedly, which requires that all pass.
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

// name joins the texts like ginkgo's FullText, because the focus of a second try is matched against that.
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

// text returns the message, and for a panic also its value, because the message is only "Test Panicked".
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
