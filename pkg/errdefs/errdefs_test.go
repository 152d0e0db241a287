package errdefs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestExitCode(t *testing.T) {
	t.Parallel()
	base := errors.New("x")
	for _, c := range []struct {
		err  error
		code int
	}{
		{nil, 0},
		{base, 1},
		{errdefs.Class(errdefs.ErrConfig, base), 2},
		{fmt.Errorf("outer: %w", errdefs.Class(errdefs.ErrPreflight, base)), 3},
		{errdefs.WithHint(errdefs.Class(errdefs.ErrComponent, base), "do"), 4},
		{errors.Join(base, errdefs.Class(errdefs.ErrTimeout, base)), 5},
		{errdefs.Class(errdefs.ErrNotRunning, base), 1},
		{errdefs.Class(errdefs.ErrConfig, nil), 0},
		{errdefs.WithHint(nil, "do"), 0},
		{errdefs.WithLog(nil, "c", "p", nil), 0},
	} {
		assert.Equal(t, errdefs.ExitCode(c.err), c.code, "%v", c.err)
	}
}

// TestReport checks that class, hints and log survive encoding as JSON.
func TestReport(t *testing.T) {
	t.Parallel()
	assert.Assert(t, errdefs.ReportOf(nil) == nil)
	var none *errdefs.Report
	assert.NilError(t, none.Err())

	inner := errdefs.WithLog(errors.New("exit status 7"), "etcd", "/log/etcd.log", []string{"disk full"})
	err := errors.Join(
		errdefs.Component("run etcd: %w", inner).Hint("free some space").Do(errdefs.Start, "dataDir=DIR"),
		errdefs.Errorf("second").Hint("free some space").Do(errdefs.Start, "dataDir=DIR"),
		errdefs.Errorf("third").Hintf("another %s", "way"),
	)
	b, jerr := json.Marshal(errdefs.ReportOf(err))
	assert.NilError(t, jerr)
	var r errdefs.Report
	assert.NilError(t, json.Unmarshal(b, &r))
	assert.DeepEqual(t, r, errdefs.Report{
		Code: errdefs.ExitComponent, Message: "run etcd: exit status 7\nsecond\nthird",
		Hints:     []string{"free some space\nstart the node dataDir=DIR", "another way"},
		Steps:     []errdefs.Hint{{{Text: "free some space"}, {Action: errdefs.Start, Args: []string{"dataDir=DIR"}}}, {{Text: "another way"}}},
		Component: "etcd", LogPath: "/log/etcd.log", LogTail: []string{"disk full"},
	})
	again := r.Err()
	assert.Equal(t, again.Error(), err.Error())
	assert.Assert(t, errors.Is(again, errdefs.ErrComponent))
	assert.Assert(t, !errors.Is(again, errdefs.ErrConfig))
	assert.DeepEqual(t, *errdefs.ReportOf(fmt.Errorf("outer: %w", again)), errdefs.Report{
		Code: errdefs.ExitComponent, Message: "outer: " + err.Error(), Hints: r.Hints, Steps: r.Steps,
		Component: "etcd", LogPath: "/log/etcd.log", LogTail: []string{"disk full"},
	})
	r.Render(func(s errdefs.Step) string {
		return strings.ToUpper(string(s.Action)) + " " + strings.Join(s.Args, " ")
	})
	assert.DeepEqual(t, r.Hints, []string{"free some space\nSTART dataDir=DIR", "another way"})
	assert.Assert(t, r.Steps == nil)
}

// Reports of versions without steps keep their hints.
func TestReportWithoutSteps(t *testing.T) {
	t.Parallel()
	var old errdefs.Report
	assert.NilError(t, json.Unmarshal([]byte(`{"code":3,"message":"x","hints":["one","two"]}`), &old))
	r := errdefs.ReportOf(errdefs.WithSteps(old.Err(), errdefs.Do(errdefs.Stop)))
	r.Render(func(s errdefs.Step) string { return string(s.Action) })
	assert.DeepEqual(t, r.Hints, []string{"stop", "one", "two"})
}

func TestHint(t *testing.T) {
	t.Parallel()
	h := errdefs.Text("# first", "df -h").Do(errdefs.ShowLogs, "kubelet")
	h = append(h, errdefs.Step{Action: errdefs.Stop, Node: "two", Text: "then retry"},
		errdefs.Step{Action: errdefs.SetUpHost, Args: []string{"alice"}, Text: "or all at once", Alternative: true})
	assert.Equal(t, h.String(), `# first
df -h
show the logs of the node: kubelet
stop node "two"    # then retry
# or all at once: as root, prepare the host for the account alice`)
}
