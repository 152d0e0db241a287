package outcome

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"
)

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func example() Report {
	run := Run{Elapsed: 90 * time.Second, Specs: []Spec{
		{Name: "[sig-a] breaks | pipes", State: Failed, Labels: []string{"Conformance"}, Message: "want <1>\n| got *2*", Duration: time.Second},
		{Name: "[sig-a] known bug", State: Failed, Message: "x"},
		{Name: "[sig-b] needs mknod", State: Failed, Labels: []string{"Conformance"}, Message: "EPERM"},
		{Name: "[sig-c] passes", State: Passed, Labels: []string{"Conformance"}, Duration: time.Minute},
		{Name: "[sig-c] passes though listed", State: Passed},
		{Name: "[sig-d] skips", State: Skipped, Message: "only for <gce>\nat x.go:1"},
		{Name: "[sig-d] skips too", State: Skipped, Message: "only for <gce>\nat y.go:2"},
		{Name: "[sig-d] skips without a reason", State: Skipped},
		{Name: "[sig-e] new flake", State: Passed, Flaked: true, Message: "slow"},
		{Name: "[sig-e] known flake", State: Passed, Flaked: true, Message: "slow"},
	}}
	e := Expectations{
		Failing: slices.Concat(entries(Ours, "[sig-a] known bug"), entries(Image, "[sig-c] passes though listed", "gone"), []Expectation{
			{Spec: "[sig-b] needs mknod", Kind: UserNamespace, Reason: "no\n`mknod`", Link: "https://example.com/a_(b)"},
		}),
		Flakes: []Flake{{Spec: "[sig-e] known flake", Reason: "slow disk"}},
	}
	conformance := func(labels []string) bool { return slices.Contains(labels, "Conformance") }
	return Report{
		Title: "Conformance", Run: run, Verdict: Compare(run, e, CompareOptions{Whole: true}),
		Changes: []Change{{"b", Failed, Passed}, {"[x](y)", Passed, Absent}, {"a", Passed, Failed}},
		Sets:    []SetFigures{Figures("all", run, nil), Figures("Conformance", run, conformance), {Name: "none"}},
		Facts:   [][2]string{{"Kubernetes", "v1.37.0"}, {"a|b", "c\nd"}},
	}
}

func TestWriteMarkdown(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	assert.NilError(t, WriteMarkdown(&out, example()))
	golden.Assert(t, out.String(), "summary.md")
	// Every row of a table has the same number of unescaped bars as its header.
	bars := 0
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "|") {
			bars = 0
			continue
		}
		n := strings.Count(line, "|") - strings.Count(line, `\|`)
		assert.Assert(t, bars == 0 || bars == n, line)
		bars = n
	}
	assert.Error(t, WriteMarkdown(brokenWriter{}, Report{Title: "x"}), `write summary "x": disk full`)
}

func TestWriteMarkdownOfNothing(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	assert.NilError(t, WriteMarkdown(&out, Report{Title: "t"}))
	assert.Equal(t, out.String(), "# t\n\n**As expected.** 0 passed, 0 failed, 0 skipped.\n")
}

func TestManyChangesAreCut(t *testing.T) {
	t.Parallel()
	var changes []Change
	for i := range changeLimit + 5 {
		changes = append(changes, Change{fmt.Sprint(i), Absent, Passed})
	}
	var out bytes.Buffer
	assert.NilError(t, WriteMarkdown(&out, Report{Changes: append(changes, Change{"worse", Passed, Failed})}))
	assert.Assert(t, strings.Contains(out.String(), "| worse | passed | failed |"))
	assert.Assert(t, strings.Contains(out.String(), "…and 6 more."))
}

func TestPercentRoundsDown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		passed, failed int
		want           string
	}{{0, 0, "–"}, {5, 0, "100.0 %"}, {9999, 1, "99.9 %"}, {0, 3, "0.0 %"}, {2, 1, "66.6 %"}} {
		assert.Equal(t, SetFigures{Passed: c.passed, Failed: c.failed, Skipped: 7}.Percent(), c.want)
	}
}

func TestWriteJUnit(t *testing.T) {
	t.Parallel()
	run := sample("failed a", "skipped b", "flaked c", "passed d\x00<&\"")
	run.Specs[0].Message = "bad \x1b[31m\xff ]]> </failure>\nmore"
	run.Specs[0].Location = "x.go:1"
	var out bytes.Buffer
	assert.NilError(t, WriteJUnit(&out, "conformance", run))
	golden.Assert(t, out.String(), "junit.xml")

	var back junitSuites
	assert.NilError(t, xml.Unmarshal(out.Bytes(), &back))
	assert.Equal(t, back.Suite.Tests, 4)
	assert.Equal(t, back.Suite.Failures, 1)
	assert.Equal(t, back.Suite.Skipped, 1)
	assert.Equal(t, back.Suite.Cases[0].Failure.Text, "bad \uFFFD[31m\uFFFD ]]> </failure>\nmore\nx.go:1")

	assert.Error(t, WriteJUnit(brokenWriter{}, "x", Run{}), `write JUnit report "x": disk full`)
	assert.NilError(t, WriteJUnit(io.Discard, "x", Run{}))
}
