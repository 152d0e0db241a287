package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// fakes are a fake rootlessnode program and a fake ginkgo that writes prepared reports. The name of a report is the name of its pass.
type fakes struct {
	t   *testing.T
	dir string
}

const fakeGinkgo = `#!/bin/sh
for a in "$@"; do
	case $a in
	--output-dir=*) out=${a#*=} ;;
	--json-report=*) report=${a#*=} ;;
	esac
done
echo "$@" >>"$out/arguments"
[ -e "$0-$report" ] || exit 1
cp "$0-$report" "$out/$report"
`

func newFakes(t *testing.T, state string, unenforced ...string) *fakes {
	f := &fakes{t: t, dir: t.TempDir()}
	status, err := json.Marshal(map[string]any{
		"state": state, "kubernetes": "v1.2.3", "kubeconfig": "/nowhere", "cgroup": map[string]any{"unenforced": unenforced},
	})
	assert.NilError(t, err)
	assert.NilError(t, os.Mkdir(filepath.Join(f.dir, programsDir), 0o755))
	f.program("rootlessnode", fmt.Sprintf("#!/bin/sh\necho \"$@\" >>\"$0-called\"\n[ \"$3\" != status ] || echo '%s'\n", status))
	f.program(filepath.Join(programsDir, "ginkgo"), fakeGinkgo)
	return f
}

func (f *fakes) program(name, script string) {
	assert.NilError(f.t, os.WriteFile(filepath.Join(f.dir, name), []byte(script), 0o755))
}

// report prepares the report of a pass from pairs of NAME and STATE.
func (f *fakes) report(pass string, specs ...string) {
	type failure struct{ Message string }
	type spec struct {
		LeafNodeType, LeafNodeText, State string
		LeafNodeLabels                    []string
		Failure                           failure
	}
	list := []spec{}
	succeeded := true
	for i := 0; i < len(specs); i += 2 {
		s := spec{LeafNodeType: "It", LeafNodeText: specs[i], State: specs[i+1], LeafNodeLabels: []string{"Conformance"}}
		if s.State != "passed" {
			s.Failure.Message, succeeded = "because", false
		}
		list = append(list, s)
	}
	data, err := json.Marshal([]map[string]any{{
		"SuiteSucceeded": succeeded, "PreRunStats": map[string]int{"SpecsThatWillRun": len(list)}, "SpecReports": list,
	}})
	assert.NilError(f.t, err)
	name := filepath.Join(f.dir, programsDir, "ginkgo-"+pass+".json")
	assert.NilError(f.t, os.WriteFile(name, data, 0o600))
}

// run runs the set conformance with expectations, and returns the output directory.
func (f *fakes) run(expectations string, more ...string) (string, error) {
	list := filepath.Join(f.dir, "expectations.yaml")
	assert.NilError(f.t, os.WriteFile(list, []byte(expectations), 0o600))
	out := filepath.Join(f.dir, "out")
	return out, run(f.t.Context(), append([]string{
		"-dir", f.dir, "-out", out, "-rootlessnode", filepath.Join(f.dir, "rootlessnode"), "-set", "conformance",
		"-expectations", list,
	}, more...))
}

func (f *fakes) file(name string) string {
	data, err := os.ReadFile(name)
	assert.NilError(f.t, err)
	return string(data)
}

func TestRunAsExpected(t *testing.T) {
	t.Parallel()
	f := newFakes(t, "ready", "memory")
	f.report("parallel", "good", "passed", "needs memory", "failed")
	f.report("serial", "single", "passed")
	out, err := f.run("expectations:\n- {spec: needs memory, kind: hybrid-cgroup, reason: a limit}\n")
	assert.NilError(t, err)
	assert.Check(t, is.Contains(f.file(filepath.Join(out, summaryFile)), "**As expected.** 2 passed, 1 failed"))
	assert.Check(t, is.Contains(f.file(filepath.Join(out, junitFile)), `name="needs memory"`))
	assert.Check(t, is.Contains(f.file(filepath.Join(out, "hybrid.txt")), "passed\tsingle\n"))
	// Specs that are expected to fail are not run again.
	assert.Check(t, is.Equal(bytes.Count([]byte(f.file(filepath.Join(out, "arguments"))), []byte("\n")), 2))
	assert.Check(t, is.Contains(f.file(filepath.Join(f.dir, "rootlessnode-called")), "images import "+filepath.Join(f.dir, imageArchive)))
	assert.Check(t, is.Contains(f.file(filepath.Join(f.dir, "rootlessnode-called")), "kubectl delete namespace"))
}

// TestRunIsSummarizedThoughCleanupFails checks that an error of the cleanup is reported, and does not prevent the summary of a long run.
func TestRunIsSummarizedThoughCleanupFails(t *testing.T) {
	t.Parallel()
	f := newFakes(t, "ready")
	f.report("parallel", "good", "passed")
	f.report("serial")
	// The cleanup before the run succeeds, the cleanup after it fails.
	f.program("rootlessnode", `#!/bin/sh
case $3 in
status) echo '{"state":"ready"}' ;;
images) touch "$0-ran" ;;
exec) [ ! -e "$0-ran" ] || { echo "cannot remove it" >&2; exit 1; } ;;
esac
`)
	out, err := f.run("expectations: []\n")
	assert.Check(t, is.ErrorContains(err, "cannot remove it"))
	assert.Check(t, is.Contains(f.file(filepath.Join(out, "delegated.txt")), "passed\tgood\n"))
}

func TestRunWhereLimitsHold(t *testing.T) {
	t.Parallel()
	f := newFakes(t, "ready")
	f.report("parallel", "needs memory", "failed")
	f.report("serial")
	f.report("again", "needs memory", "failed")
	_, err := f.run("expectations:\n- {spec: needs memory, kind: hybrid-cgroup, reason: a limit}\n")
	assert.ErrorContains(t, err, "needs memory")
}

func TestRunNamesWhatIsNotAsExpected(t *testing.T) {
	t.Parallel()
	f := newFakes(t, "ready")
	f.report("parallel", "bad", "failed", "fixed", "passed", "flaky", "failed")
	f.report("serial")
	f.report("again", "bad", "failed", "flaky", "passed")
	out, err := f.run("expectations:\n- {spec: fixed, kind: ours, reason: it was}\n")
	assert.Check(t, is.ErrorContains(err, "bad"))
	assert.Check(t, is.ErrorContains(err, "fixed"))
	assert.Check(t, is.Contains(f.file(filepath.Join(out, "delegated.txt")), "flaked\tflaky\n"))
	assert.Check(t, is.Contains(f.file(filepath.Join(out, "arguments")), "--focus=flaky$"))
}

func TestRunComparesWithTheLast(t *testing.T) {
	t.Parallel()
	f := newFakes(t, "ready")
	f.report("parallel", "good", "passed")
	f.report("serial")
	last := filepath.Join(f.dir, "delegated.txt")
	assert.NilError(t, os.WriteFile(last, []byte("failed\tgood\npassed\tof another set\n"), 0o600))
	out, err := f.run("expectations: []\n", "-records", f.dir)
	assert.NilError(t, err)
	summary := f.file(filepath.Join(out, summaryFile))
	assert.Check(t, is.Contains(summary, "good"))
	assert.Check(t, !bytes.Contains([]byte(summary), []byte("of another set")), "only specs of both runs are compared")
	assert.Check(t, is.Contains(f.file(filepath.Join(out, "delegated.txt")), "passed\tgood\n"))
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	f := newFakes(t, "starting")
	_, err := f.run("expectations: []\n")
	assert.Check(t, is.ErrorContains(err, "is starting, but must be ready"))

	f = newFakes(t, "ready")
	_, err = f.run("expectations: []\n")
	assert.Check(t, is.ErrorContains(err, "pass parallel wrote no report"))

	f = newFakes(t, "ready")
	f.report("parallel")
	f.report("serial")
	_, err = f.run("expectations: []\n")
	assert.Check(t, is.ErrorContains(err, "no spec is selected"))

	_, err = f.run("expectation: []\n")
	assert.Check(t, is.ErrorContains(err, "expectation"))
}
