package outcome

import (
	"fmt"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

func entries(kind Kind, specs ...string) []Expectation {
	var out []Expectation
	for _, s := range specs {
		out = append(out, Expectation{Spec: s, Kind: kind, Reason: "because"})
	}
	return out
}

// summary lists the names of every non-empty group of a verdict.
func summary(v Verdict) string {
	var out []string
	add := func(group string, names ...string) {
		if len(names) > 0 {
			out = append(out, group+"="+strings.Join(names, ","))
		}
	}
	failures := func(list []Failure) (names []string) {
		for _, f := range list {
			names = append(names, f.Spec.Name)
		}
		return names
	}
	listed := func(list []Expectation) (names []string) {
		for _, x := range list {
			names = append(names, x.Spec)
		}
		return names
	}
	add("expected", failures(v.Expected)...)
	add("unexpected", failures(v.Unexpected)...)
	add("passing", listed(v.Passing)...)
	add("skipping", listed(v.Skipping)...)
	add("stale", listed(v.Stale)...)
	add("ours", listed(v.Ours)...)
	for _, f := range v.StaleFlakes {
		add("staleflake", f.Spec)
	}
	for _, f := range v.Flakes {
		add("flake", f.Spec.Name)
	}
	for _, s := range v.NewFlakes {
		add("newflake", s.Name)
	}
	return strings.Join(out, " ")
}

func TestCompare(t *testing.T) {
	t.Parallel()
	both := Expectations{Failing: entries(Image, "a"), Flakes: []Flake{{Spec: "a", Reason: "r"}}}
	flake := Expectations{Flakes: []Flake{{Spec: "a", Reason: "r"}}}
	for _, c := range []struct {
		name string
		run  Run
		e    Expectations
		opts CompareOptions
		want string
		ok   bool
	}{
		{name: "nothing", ok: true},
		{name: "all pass", run: sample("passed a", "skipped b"), ok: true},
		{name: "unlisted failure", run: sample("failed a"), want: "unexpected=a"},
		{name: "listed failure", run: sample("failed a"), e: Expectations{Failing: entries(Image, "a")}, want: "expected=a", ok: true},
		{name: "ours", run: sample("failed a"), e: Expectations{Failing: entries(Ours, "a")}, want: "expected=a ours=a", ok: true},
		{name: "listed passes", run: sample("passed a"), e: Expectations{Failing: entries(Ours, "a")}, want: "passing=a"},
		{name: "listed flakes", run: sample("flaked a"), e: Expectations{Failing: entries(Image, "a")}, want: "passing=a newflake=a"},
		{name: "listed skips", run: sample("skipped a"), e: Expectations{Failing: entries(Image, "a")}, want: "skipping=a", ok: true},
		{name: "absent, part", e: Expectations{Failing: entries(Image, "a")}, ok: true},
		{
			name: "absent, whole", e: Expectations{Failing: entries(Image, "a"), Flakes: []Flake{{Spec: "b"}}},
			opts: CompareOptions{Whole: true}, want: "stale=a staleflake=b",
		},
		{name: "only a stale flake", e: flake, opts: CompareOptions{Whole: true}, want: "staleflake=a"},
		{name: "hybrid fails", run: sample("failed a"), e: Expectations{Failing: entries(HybridCgroup, "a")}, want: "expected=a", ok: true},
		{name: "kernel fails", run: sample("failed a"), e: Expectations{Failing: entries(HostKernel, "a")}, want: "expected=a", ok: true},
		{name: "kernel passes", run: sample("passed a"), e: Expectations{Failing: entries(HostKernel, "a")}, ok: true},
		{name: "hybrid passes", run: sample("passed a"), e: Expectations{Failing: entries(HybridCgroup, "a")}, want: "passing=a"},
		{
			name: "hybrid fails, delegated", run: sample("failed a"), e: Expectations{Failing: entries(HybridCgroup, "a")},
			opts: CompareOptions{Delegated: true, Whole: true}, want: "unexpected=a",
		},
		{
			name: "hybrid passes, delegated", run: sample("passed a"), e: Expectations{Failing: entries(HybridCgroup, "a")},
			opts: CompareOptions{Delegated: true, Whole: true}, ok: true,
		},
		{
			name: "others fail, delegated", run: sample("failed a"), e: Expectations{Failing: entries(UserNamespace, "a")},
			opts: CompareOptions{Delegated: true}, want: "expected=a", ok: true,
		},
		{name: "new flake", run: sample("flaked a"), want: "newflake=a", ok: true},
		{name: "known flake", run: sample("flaked a"), e: flake, want: "flake=a", ok: true},
		{name: "known flake passes", run: sample("passed a"), e: flake, ok: true},
		{name: "known flake fails twice", run: sample("failed a"), e: flake, want: "unexpected=a"},
		{name: "both lists, passes", run: sample("passed a"), e: both, ok: true},
		{name: "both lists, flakes", run: sample("flaked a"), e: both, want: "flake=a", ok: true},
		{name: "both lists, fails", run: sample("failed a"), e: both, want: "expected=a", ok: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := Compare(c.run, c.e, c.opts)
			assert.Equal(t, summary(v), c.want)
			assert.Equal(t, v.OK(), c.ok)
			assert.Equal(t, v.Err() == nil, c.ok, "%v", v.Err())
			assert.Equal(t, v.Passed+v.Failed+v.Skipped, len(c.run.Specs))
		})
	}
}

func TestVerdictErrNamesEveryFault(t *testing.T) {
	t.Parallel()
	e := Expectations{Flakes: []Flake{{Spec: "f"}}}
	e.Failing = append(entries(Image, "b", "gone"), entries(HybridCgroup, "h")...)
	v := Compare(sample("failed a", "passed b", "failed h"), e, CompareOptions{Whole: true, Delegated: true})
	assert.Equal(t, fmt.Sprint(v.Err()), strings.Join([]string{
		`spec "a": failed, but is not listed`,
		`spec "h": failed, but must pass because the cgroup controllers are delegated`,
		`spec "b": passed, but is listed as failing (image)`,
		`spec "gone": listed as failing, but not part of the set`,
		`spec "f": listed as a flake, but not part of the set`,
	}, "\n"))
}
