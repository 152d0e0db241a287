package outcome

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"gotest.tools/v3/assert"
)

// testdata/report.json is from a real suite with ginkgo 2.32, two processes and --label-filter=Conformance, without the stack traces.
func TestParseReportOfGinkgo(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/report.json")
	assert.NilError(t, err)
	run, err := ParseReport(bytes.NewReader(data))
	assert.NilError(t, err)
	assert.Assert(t, run.Elapsed > 0)

	var got []string
	for _, s := range run.Specs {
		got = append(got, fmt.Sprintf("%s|%s|%s", s.outcome(), s.Name, s.Message))
		assert.Assert(t, strings.HasPrefix(s.Location, "example.com/sample/sample_test.go:"), s.Location)
	}
	assert.DeepEqual(t, got, []string{
		"failed|[sig-apps] Ordered goes first|no first",
		"skipped|[sig-apps] Ordered goes second|Spec skipped because an earlier spec in an ordered container failed",
		"failed|[sig-node] Pods should fail [Conformance]|expected 1 | got 2\nsecond line",
		"failed|[sig-node] Pods should panic|Test Panicked: boom",
		"passed|[sig-node] Pods should pass [Conformance]|",
		"skipped|[sig-node] Pods should skip itself|Only supported for providers [gce] (not local)",
		"failed|[sig-node] Pods should time out|A node timeout occurred",
		"flaked|[sig-node] Pods should waver|Failure recorded during attempt 1:\nfirst try",
	})
	pass := byName(run)["[sig-node] Pods should pass [Conformance]"]
	assert.DeepEqual(t, pass.Labels, []string{"sig-node", "Conformance"})
	assert.Assert(t, pass.Duration >= time.Millisecond)
	assert.DeepEqual(t, run.Again(), []string{
		"[sig-apps] Ordered goes first", "[sig-apps] Ordered goes second", "[sig-node] Pods should fail [Conformance]",
		"[sig-node] Pods should panic", "[sig-node] Pods should time out",
	})
}

func it(name, state, more string) string {
	return fmt.Sprintf(`{"LeafNodeType":"It","LeafNodeText":%q,"State":%q%s}`, name, state, more)
}

func suiteOf(head string, specs ...string) string {
	return fmt.Sprintf(`[{%s,"SpecReports":[%s]}]`, head, strings.Join(specs, ","))
}

func TestParseReport(t *testing.T) {
	t.Parallel()
	const good = `"SuiteSucceeded":true,"PreRunStats":{"TotalSpecs":1,"SpecsThatWillRun":1}`
	const bad = `"SuiteSucceeded":false,"PreRunStats":{"TotalSpecs":2,"SpecsThatWillRun":2}`
	const node = `{"LeafNodeType":"SynchronizedBeforeSuite","State":"failed","Failure":{"Message":"no cluster"}}`
	const after = `{"LeafNodeType":"ReportAfterSuite","State":"timedout","Failure":{"Message":"no disk"}}`
	for _, c := range []struct {
		name, in string
		want     string // the run
		errs     []string
	}{
		{name: "nothing", in: "", errs: []string{"EOF"}},
		{name: "not an array", in: "{}", errs: []string{"cannot unmarshal object"}},
		{name: "null", in: "null", errs: []string{"has no report"}},
		{name: "empty array", in: "[]", errs: []string{"has no report"}},
		{name: "cut file", in: suiteOf(good, it("a", "passed", ""))[:60], errs: []string{"unexpected EOF"}},
		{name: "appended", in: suiteOf(good, it("a", "passed", "")) + "[]", errs: []string{"more data"}},
		{name: "one", in: suiteOf(good, it("a", "passed", "")), want: "passed a;"},
		{
			name: "none selected, fail on empty",
			in: suiteOf(`"SuiteSucceeded":false,"SpecialSuiteFailureReasons":["Detected no specs ran"],"PreRunStats":{"TotalSpecs":1}`,
				it("a", "skipped", "")),
		},
		{
			name: "never began",
			in:   suiteOf(`"SuiteSucceeded":false,"SpecialSuiteFailureReasons":["Failed to compile"]`),
			errs: []string{"no spec failed: Failed to compile"},
		},
		{
			name: "failed without a failed spec",
			in:   suiteOf(bad, it("a", "passed", ""), it("b", "passed", "")),
			want: "passed a;passed b;", errs: []string{"no spec failed"},
		},
		{
			name: "interrupted: the rest looks filtered out",
			in: suiteOf(`"SpecialSuiteFailureReasons":["Interrupted by Timeout"],"PreRunStats":{"TotalSpecs":3,"SpecsThatWillRun":3}`,
				it("a", "interrupted", ""), it("b", "skipped", ""), it("c", "skipped", "")),
			want: "failed a;", errs: []string{"2 of 3 selected specs did not run: Interrupted by Timeout"},
		},
		{
			name: "suite nodes, each fault once",
			in:   suiteOf(bad, node, node, after, it("a", "passed", ""), it("b", "passed", "")),
			want: "passed a;passed b;",
			errs: []string{"run SynchronizedBeforeSuite: failed: no cluster", "run ReportAfterSuite: timedout: no disk"},
		},
		{
			name: "unknown state", in: suiteOf(good, it("a", "passed", ""), it("b", "melted", "")),
			want: "passed a;", errs: []string{`"b": unknown state "melted"`},
		},
		{name: "no name", in: suiteOf(`"SuiteSucceeded":true`, it("", "passed", "")), errs: []string{"no name"}},
		{name: "dry run", in: suiteOf(good+`,"SuiteConfig":{"DryRun":true}`, it("a", "passed", "")), want: "skipped a;"},
		{
			name: "same name: the worse one", want: "failed a;",
			in: suiteOf(bad, it("a", "failed", ""), it("a", "passed", "")),
		},
		{
			name: "repeated is not flaked", want: "passed a;",
			in: suiteOf(good, it("a", "passed", `,"NumAttempts":3,"MaxMustPassRepeatedly":3`)),
		},
		{name: "skipped late without a reason", in: suiteOf(good, it("a", "skipped", `,"RunTime":5`)), want: "skipped a;"},
		{name: "aborted", in: suiteOf(good, it("a", "aborted", "")), want: "failed a;"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run, err := ParseReport(strings.NewReader(c.in))
			got := ""
			for _, s := range run.Specs {
				got += string(s.outcome()) + " " + s.Name + ";"
			}
			assert.Equal(t, got, c.want)
			if len(c.errs) == 0 {
				assert.NilError(t, err)
			}
			for _, e := range c.errs {
				assert.ErrorContains(t, err, e)
				assert.Equal(t, strings.Count(err.Error(), e), 1)
			}
		})
	}
}

func TestLongMessageIsCutOnARune(t *testing.T) {
	t.Parallel()
	for n := range 4 {
		got := shorten(strings.Repeat("x", n)+strings.Repeat("€", messageLimit), messageLimit)
		assert.Assert(t, len(got) <= messageLimit && len(got) > messageLimit-5 && utf8.ValidString(got))
	}
	assert.Equal(t, shorten("short", messageLimit), "short")
}

func sample(outcomes ...string) Run {
	var specs []Spec
	for _, o := range outcomes {
		state, name, _ := strings.Cut(o, " ")
		s := Spec{Name: name, State: State(state), Message: "of " + o, Duration: time.Second}
		if s.State == Flaked {
			s.State, s.Flaked = Passed, true
		}
		specs = append(specs, s)
	}
	return newRun(specs, time.Minute, worse)
}

func outcomes(r Run) []string {
	var out []string
	for _, s := range r.Specs {
		out = append(out, string(s.outcome())+" "+s.Name)
	}
	return out
}

func TestMergeAndRetry(t *testing.T) {
	t.Parallel()
	parallel, serial := sample("passed b", "failed a"), sample("passed a", "skipped c")
	merged := Merge(parallel, serial)
	assert.DeepEqual(t, outcomes(merged), []string{"passed a", "passed b", "skipped c"})
	assert.Equal(t, merged.Elapsed, 2*time.Minute)
	assert.DeepEqual(t, outcomes(parallel), []string{"failed a", "passed b"})
	assert.Equal(t, len(Merge().Specs), 0)

	first := sample("failed a", "failed b", "failed c", "failed d", "passed e", "skipped f", "skipped g")
	before := slices.Clone(first.Specs)
	tried := Retry(first, sample("passed a", "failed b", "skipped c", "failed e", "passed f", "skipped g", "passed z"))
	assert.DeepEqual(t, outcomes(tried), []string{
		"flaked a", "failed b", "failed c", "failed d", "passed e", "passed f", "skipped g",
	})
	assert.Equal(t, tried.Specs[0].Message, "of failed a")
	assert.DeepEqual(t, first.Specs, before)
}

func FuzzParseReport(f *testing.F) {
	data, err := os.ReadFile("testdata/report.json")
	assert.NilError(f, err)
	f.Add(data)
	f.Add([]byte(suiteOf(`"SuiteSucceeded":true`, it("a", "passed", ""), it("a", "failed", ""))))
	f.Add([]byte(`[{"SpecReports":[{"LeafNodeType":null,"State":null},{}]},null]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		run, err := ParseReport(bytes.NewReader(data))
		for i, s := range run.Specs {
			assert.Assert(t, i == 0 || run.Specs[i-1].Name < s.Name)
			assert.Assert(t, s.Name != "" && len(s.Message) <= messageLimit)
		}
		if err == nil {
			_, err := Encode(run)
			assert.NilError(t, err)
		}
	})
}
