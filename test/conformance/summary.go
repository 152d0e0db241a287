package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/test/conformance/internal/outcome"
)

// Files that a run writes to its output directory, in addition to its record and the logs and reports of its passes.
const (
	summaryFile = "summary.md"
	junitFile   = "junit.xml"
)

// summarize writes the summary of a run, and returns an error if the outcome does not match the expectations.
func (o options) summarize(result outcome.Run, expected outcome.Expectations, last outcome.Run, node testNode, took time.Duration) error {
	whole := o.set == setAll && len(o.focus) == 0
	verdict := outcome.Compare(result, expected, outcome.CompareOptions{Whole: whole, Delegated: node.delegated()})
	report := outcome.Report{
		Title: "Kubernetes end-to-end suite, set " + o.set, Verdict: verdict, Run: result,
		Sets: []outcome.SetFigures{
			outcome.Figures("NodeConformance", result, hasLabel("NodeConformance")),
			outcome.Figures("Conformance", result, hasLabel("Conformance")),
			outcome.Figures("both", result, nil),
		},
		Facts: [][2]string{
			{"date", time.Now().UTC().Format(time.DateOnly)}, {"Kubernetes", node.Kubernetes}, {"rootlessnode", node.Version},
			{"cgroup controllers", orNone(node.Cgroup.Controllers)}, {"not enforced", orNone(node.Cgroup.Unenforced)},
			{"side by side", strconv.Itoa(o.procs)}, {"focus", orNone(o.focus)}, {"took", took.Round(time.Second).String()},
		},
	}
	if len(last.Specs) > 0 {
		// Compare a part of the set with the same part of the last run.
		if !whole {
			last = part(last, result)
		}
		report.Changes = outcome.Diff(last, result)
	}
	record, err := outcome.Encode(result)
	if err != nil {
		return err
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(o.out, node.recordFile()), record, 0o644),
		write(filepath.Join(o.out, summaryFile), func(w io.Writer) error { return outcome.WriteMarkdown(w, report) }),
		write(filepath.Join(o.out, junitFile), func(w io.Writer) error { return outcome.WriteJUnit(w, "rootlessnode", result) }))
	for _, set := range report.Sets {
		fmt.Printf("%-16s %d of %d passed (%s), %d failed, %d skipped\n", set.Name, set.Passed, set.Passed+set.Failed, set.Percent(),
			set.Failed, set.Skipped)
	}
	for _, spec := range verdict.NewFlakes {
		fmt.Printf("flake, not listed: %s\n", spec.Name)
	}
	return errors.Join(err, verdict.Err())
}

// part returns the specs of a run that another run has too.
func part(run, of outcome.Run) outcome.Run {
	names := map[string]bool{}
	for _, spec := range of.Specs {
		names[spec.Name] = true
	}
	return outcome.Run{Specs: slices.DeleteFunc(slices.Clone(run.Specs), func(s outcome.Spec) bool { return !names[s.Name] })}
}

func hasLabel(label string) func([]string) bool {
	return func(labels []string) bool { return slices.Contains(labels, label) }
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, " ")
}

func write(name string, content func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(content(f), f.Close())
}
