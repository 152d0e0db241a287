// Package outcome tells what a run of Kubernetes' end-to-end suite proved: it reads the JSON reports of ginkgo, compares
// them with the list of specs known to fail here, and renders the result for a person, for git and for a CI. It only
// computes: it starts nothing, opens no file and knows no cluster. It refuses to guess: a report it cannot read whole, a
// run cut short or a list with a fault is an error, never a better-looking result.
package outcome

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// State is how a spec ended.
type State string

// The states of a Spec. Everything ginkgo tells apart among failures (panicked, interrupted, aborted, timed out) is Failed.
const (
	Passed  State = "passed"
	Failed  State = "failed"
	Skipped State = "skipped"
)

// The words which only records and changes use beside the states: passed after a failure, and not part of the run.
const (
	Flaked State = "flaked"
	Absent State = "absent"
)

// Spec is the result of one spec.
type Spec struct {
	// Name is the full text: those of the containers and of the leaf, joined by spaces. It identifies the spec.
	Name string
	// Labels are those of the containers and of the leaf, without repetition.
	Labels []string
	State  State
	// Flaked says that a passed spec failed at first.
	Flaked bool
	// Message tells why a spec failed, flaked or skipped itself; long ones are cut.
	Message string
	// Location is file:line of the failure or skip, else of the spec itself.
	Location string
	Duration time.Duration
}

// outcome is the state with flakes told apart.
func (s Spec) outcome() State {
	if s.State == Passed && s.Flaked {
		return Flaked
	}
	return s.State
}

// Run holds the results of one run, by name and each name once.
type Run struct {
	Specs []Spec
	// Elapsed is the wall time of all passes together, zero where it is not known (a decoded record).
	Elapsed time.Duration
}

// Merge joins the passes of one run. Where two have the same spec, the later one counts.
func Merge(runs ...Run) Run {
	var all []Spec
	var elapsed time.Duration
	for _, r := range runs {
		all = append(all, r.Specs...)
		elapsed += r.Elapsed
	}
	return newRun(all, elapsed, func(_, later Spec) Spec { return later })
}

// Retry takes a second try of (some of) the specs of first into account: one that failed and now passed has flaked, and
// keeps the message of its failure. One that was skipped and now ran counts as it ran, see Again. Nothing gets worse for
// a spec which passed already, and specs only the second try had are not added: they were not asked for.
func Retry(first, again Run) Run {
	second := byName(again)
	out := Run{Specs: slices.Clone(first.Specs), Elapsed: first.Elapsed + again.Elapsed}
	for i, s := range out.Specs {
		now, found := second[s.Name]
		switch {
		case !found:
		case s.State == Failed && now.State == Passed:
			now.Flaked = true
			now.Message, now.Location = s.Message, s.Location
			out.Specs[i] = now
		case s.State == Skipped && now.State != Skipped:
			out.Specs[i] = now
		}
	}
	return out
}

// Again names the specs a second try has to run: those that failed, and those ginkgo left out for the failure of an
// earlier one in the same container, which nobody has tested.
func (r Run) Again() []string {
	var names []string
	for _, s := range r.Specs {
		// ginkgo's internal/group.go has the two sentences; its API has no other sign.
		follower := s.State == Skipped && (strings.HasPrefix(s.Message, "Spec skipped because an earlier spec") ||
			strings.HasPrefix(s.Message, "Spec skipped because a BeforeAll node failed"))
		if s.State == Failed || follower {
			names = append(names, s.Name)
		}
	}
	return names
}

// newRun sorts specs and lets pick decide between two of the same name, in the order given.
func newRun(specs []Spec, elapsed time.Duration, pick func(earlier, later Spec) Spec) Run {
	sorted := slices.Clone(specs)
	slices.SortStableFunc(sorted, func(a, b Spec) int { return cmp.Compare(a.Name, b.Name) })
	out := sorted[:0]
	for _, s := range sorted {
		if n := len(out); n > 0 && out[n-1].Name == s.Name {
			out[n-1] = pick(out[n-1], s)
			continue
		}
		out = append(out, s)
	}
	return Run{Specs: out, Elapsed: elapsed}
}

func byName(r Run) map[string]Spec {
	m := make(map[string]Spec, len(r.Specs))
	for _, s := range r.Specs {
		m[s.Name] = s
	}
	return m
}

// messageLimit keeps summaries readable: some failures carry the YAML of every object of a namespace.
const messageLimit = 2000

// shorten cuts s to at most limit bytes, never inside a rune.
func shorten(s string, limit int) string {
	const mark = "…"
	if len(s) <= limit {
		return s
	}
	end := limit - len(mark)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}

// firstLine is the first line of s that has text.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(line)
}
