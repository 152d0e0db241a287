// Package outcome evaluates a run of Kubernetes' end-to-end suite. It parses the JSON reports of ginkgo, compares them with the list of
// known failures, and renders the result for users, for git and for CI. It does not start programs, open files or access a cluster.
// Incomplete reports, interrupted runs and errors in the list are errors, so that they cannot improve the result.
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

// The states of a Spec. All kinds of failures of ginkgo (panicked, interrupted, aborted, timed out) are Failed.
const (
	Passed  State = "passed"
	Failed  State = "failed"
	Skipped State = "skipped"
)

// Additional states of records and changes: passed after a failure, and not part of the run.
const (
	Flaked State = "flaked"
	Absent State = "absent"
)

// Spec is the result of one spec.
type Spec struct {
	// Name is the full name of the spec: the texts of the containers and of the leaf, joined by spaces.
	Name string
	// Labels are the labels of the containers and of the leaf, without duplicates.
	Labels []string
	State  State
	// Flaked is set if the spec passed after a failure.
	Flaked bool
	// Message is the reason why a spec failed, flaked or skipped itself. Long messages are shortened.
	Message string
	// Location is file:line of the failure or skip, otherwise of the spec.
	Location string
	Duration time.Duration
}

// outcome returns the state, or Flaked for a spec that flaked.
func (s Spec) outcome() State {
	if s.State == Passed && s.Flaked {
		return Flaked
	}
	return s.State
}

// Run has the results of one run, sorted by name and without duplicates.
type Run struct {
	Specs []Spec
	// Elapsed is the elapsed time of all passes, or zero if it is unknown, as in a decoded record.
	Elapsed time.Duration
}

// Merge merges the passes of one run. If two passes have the same spec, the later one is used.
func Merge(runs ...Run) Run {
	var all []Spec
	var elapsed time.Duration
	for _, r := range runs {
		all = append(all, r.Specs...)
		elapsed += r.Elapsed
	}
	return newRun(all, elapsed, func(_, later Spec) Spec { return later })
}

// Retry merges a second try of some specs into the results of the first. A spec that failed first and passed now has flaked, and keeps the
// message of its failure. For a spec that was skipped first, the second result is used, see Again. Specs that passed first do not change,
// and specs that only the second try has are ignored.
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

// Again returns the names of the specs for a second try: those that failed, and those that ginkgo skipped because an earlier spec of the same
// container failed.
func (r Run) Again() []string {
	var names []string
	for _, s := range r.Specs {
		// The messages are in ginkgo's internal/group.go. Its API does not show this otherwise.
		follower := s.State == Skipped && (strings.HasPrefix(s.Message, "Spec skipped because an earlier spec") ||
			strings.HasPrefix(s.Message, "Spec skipped because a BeforeAll node failed"))
		if s.State == Failed || follower {
			names = append(names, s.Name)
		}
	}
	return names
}

// newRun sorts specs by name and calls pick to select one of two specs with the same name.
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

// messageLimit is the largest length of a message in bytes. Some failures have the YAML of every object of a namespace.
const messageLimit = 2000

// shorten shortens s to at most limit bytes, but not inside of a rune.
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

// firstLine returns the first non-empty line of s.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(line)
}
