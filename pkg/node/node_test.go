package node

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func TestMain(m *testing.M) {
	Dispatch() // as in the main function of a host program
	testutil.QuickChildren()
	goleak.VerifyTestMain(m)
}

// TestRole checks that one variable decides the role.
func TestRole(t *testing.T) {
	for _, c := range []struct {
		env, role string
		some      bool
	}{
		{layout.EnvName, "x", false},
		{layout.EnvPipeFD, "3,4", false},
		{layout.EnvRole, "unknown", false},
		{layout.EnvRole, layout.RoleParent, true},
		{layout.EnvRole, layout.RoleGuard, true},
		{layout.EnvRole, layout.RoleChild, true},
		{layout.EnvRole, layout.RoleNode, true},
		{layout.EnvRole, layout.RoleMounts, true},
		{layout.EnvRole, layout.RoleRemove, true},
		{layout.EnvRole, layout.RoleRemoveChild, true},
		{layout.EnvRole, layout.RoleRemoveInside, true},
		{layout.EnvRole, layout.RoleTrial, true},
		{layout.EnvRole, layout.RoleTrialInside, true},
	} {
		t.Setenv(c.env, c.role)
		name, _ := layout.TakeRole()
		assert.Equal(t, roles()[name] != nil, c.some, "%+v", c)
		assert.NilError(t, os.Unsetenv(c.env))
	}
}

// home sets XDG_RUNTIME_DIR and XDG_DATA_HOME to new directories and returns them.
func home(t *testing.T) (runtime, data string) {
	t.Helper()
	testutil.Require(t, testutil.OrdinaryUser)
	runtime, data = t.TempDir(), t.TempDir()
	assert.NilError(t, os.Chmod(runtime, 0o700))
	t.Setenv("XDG_RUNTIME_DIR", runtime)
	t.Setenv("XDG_DATA_HOME", data)
	return runtime, data
}

func TestNewTouchesNothing(t *testing.T) {
	runtime, data := home(t)
	cfg := config.Default()
	n, err := New(cfg, Options{})
	assert.NilError(t, err)
	assert.Equal(t, cfg.DataDir, "", "New must not change the caller's config")
	assert.Equal(t, n.Data().Dir, layout.DefaultDataDir(data, "default"))
	assert.Equal(t, n.Runtime().Dir, filepath.Join(runtime, "rootlessnode", "default"))
	assert.Assert(t, n.Config().Network.Driver != config.DriverAuto, "the driver must be resolved")
	for _, dir := range []string{runtime, data} {
		entries, err := os.ReadDir(dir)
		assert.NilError(t, err)
		assert.Equal(t, len(entries), 0)
	}
}

func TestNewReportsAllErrors(t *testing.T) {
	home(t)
	cfg := config.Default()
	cfg.Name, cfg.Network.MTU, cfg.API.Port = "a/b", 1, -1
	_, err := New(cfg, Options{})
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	for _, text := range []string{"name", "network.mtu", "api.port"} {
		assert.Assert(t, cmp.Contains(err.Error(), text))
	}
}

func TestNoNode(t *testing.T) {
	home(t)
	ctx := t.Context()
	n, err := Attach("none", Options{})
	assert.NilError(t, err)
	s, err := n.Status(ctx)
	assert.NilError(t, err)
	assert.Equal(t, s.State, status.NodeStopped)
	assert.NilError(t, n.Stop(ctx), "stopping a stopped node must succeed")
	res, err := n.DeleteData(ctx)
	assert.NilError(t, err)
	assert.Assert(t, res == nil, "there is no data")
	assert.ErrorIs(t, n.Wait(), errdefs.ErrNotRunning)
	_, err = n.Exec(ctx, nodeexec.Request{Argv: []string{"true"}})
	assert.ErrorIs(t, err, errdefs.ErrNotRunning)
	assert.ErrorIs(t, n.WaitReady(ctx, nil), errdefs.ErrNotRunning)
	assert.ErrorIs(t, n.Events(ctx, false, nil), errdefs.ErrNotRunning)
}

// TestStatusSocketIsRemoved checks that a node that has no status socket long after its start is not reported as starting.
func TestStatusSocketIsRemoved(t *testing.T) {
	home(t)
	n, err := New(config.Default(), Options{})
	assert.NilError(t, err)
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	state, reason := withoutSocket(n, now)
	assert.Equal(t, state, status.NodeStarting, "before the child exists: %v", reason)
	assert.NilError(t, os.MkdirAll(n.Runtime().Dir, 0o700))
	assert.NilError(t, layout.WriteJSON(n.Runtime().Handover(), layout.HandoverInfo{StartedAt: now}))
	state, reason = withoutSocket(n, now.Add(time.Second))
	assert.Equal(t, state, status.NodeStarting, "%v", reason)
	state, reason = withoutSocket(n, now.Add(time.Hour))
	assert.Equal(t, state, status.NodeDegraded)
	assert.ErrorContains(t, reason, "node.sock does not exist")
	assert.Assert(t, len(errdefs.ReportOf(reason).Hints) > 0)
}

// TestLastRun checks that the status of a stopped node has the error of the last run.
func TestLastRun(t *testing.T) {
	home(t)
	n, err := New(config.Default(), Options{})
	assert.NilError(t, err)
	assert.NilError(t, os.MkdirAll(n.Data().Dir, 0o700))
	report := errdefs.ReportOf(errdefs.Class(errdefs.ErrComponent, errors.New("etcd: disk full")))
	assert.NilError(t, layout.WriteJSON(n.Data().LastExit(), report))
	s, err := n.Status(t.Context())
	assert.NilError(t, err)
	assert.Equal(t, s.State, status.NodeFailed)
	assert.Equal(t, s.Reason, "etcd: disk full")
	err = n.WaitReady(t.Context(), nil)
	assert.ErrorIs(t, err, errdefs.ErrComponent)
	assert.ErrorContains(t, err, "disk full")
}

// TestAwaitExit checks that awaitExit waits for the error of a node that is ending. Such a node closes its status socket before its
// parent has the error, and holds its lock until the guard has cleaned up.
func TestAwaitExit(t *testing.T) {
	home(t)
	n, err := New(config.Default(), Options{})
	assert.NilError(t, err)
	assert.NilError(t, os.MkdirAll(n.Data().Dir, 0o700))
	assert.NilError(t, os.MkdirAll(filepath.Dir(n.Runtime().Lock()), 0o700))
	lock, err := os.Create(n.Runtime().Lock())
	assert.NilError(t, err)
	assert.NilError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	report := errdefs.ReportOf(errdefs.WithLog(errdefs.Component("join: denied"), "join", "/log/join.log", []string{"401"}))
	synctest.Test(t, func(t *testing.T) {
		result := make(chan error, 1)
		go func() { result <- awaitExit(t.Context(), n) }()
		synctest.Wait()
		assert.Equal(t, len(result), 0)
		assert.NilError(t, layout.WriteJSON(n.Data().LastExit(), report))
		synctest.Wait()
		assert.Equal(t, len(result), 0, "the guard has not cleaned up")
		assert.NilError(t, lock.Close())
		assert.DeepEqual(t, errdefs.ReportOf(<-result), report)
	})
	s, err := n.Status(t.Context())
	assert.NilError(t, err)
	assert.DeepEqual(t, s.Failure, report)
	assert.NilError(t, os.Remove(n.Data().LastExit()))
	assert.NilError(t, awaitExit(t.Context(), n), "the run ended without a report")
}

// TestLostReport checks that the error of a killed parent is the error that its guard has recorded, also if the guard is still cleaning up.
func TestLostReport(t *testing.T) {
	home(t)
	n, err := New(config.Default(), Options{})
	assert.NilError(t, err)
	killed := exec.Command("sh", "-c", "kill -KILL $$").Run()
	assert.Error(t, lostReport(n, layout.RoleParent, killed), "the parent process ended unexpectedly: killed by SIGKILL")
	assert.NilError(t, os.MkdirAll(n.Data().Dir, 0o700))
	assert.NilError(t, layout.WriteJSON(n.Data().LastExit(), errdefs.ReportOf(errdefs.Component("the parent was killed"))))
	err = lostReport(n, layout.RoleParent, killed)
	assert.Error(t, err, "the parent was killed")
	assert.ErrorIs(t, err, errdefs.ErrComponent)
}

// TestPreflightStopsStart checks that Start returns the preflight findings and creates nothing on a host that cannot run a node.
func TestPreflightStopsStart(t *testing.T) {
	runtime, _ := home(t)
	cfg := config.Default()
	cfg.ComponentsDir = t.TempDir()
	n, err := New(cfg, Options{})
	assert.NilError(t, err)
	err = n.Start(t.Context())
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.ErrorContains(t, err, "manifest.json")
	assert.Assert(t, len(errdefs.ReportOf(err).Hints) > 0)
	entries, err := os.ReadDir(runtime)
	assert.NilError(t, err)
	assert.Equal(t, len(entries), 0)
}

func TestTimedOutNamesComponents(t *testing.T) {
	t.Parallel()
	n := &Node{}
	n.cfg.Store(config.Default())
	err := timedOut(n, status.MilestoneUsable, &status.Status{Components: []status.Component{
		{Name: "etcd", State: status.Ready},
		{Name: "kubelet", State: status.Waiting, WaitingFor: []string{"containerd ready"}},
		{Name: "containerd", State: status.Backoff, Reason: "exit status 1"},
	}, Conditions: []status.Condition{{Type: status.ConditionClusterDNS, Message: "no pods", Steps: errdefs.Do(errdefs.Kubectl, "get", "pods")}}})
	assert.ErrorIs(t, err, errdefs.ErrTimeout)
	assert.ErrorContains(t, err, "kubelet is waiting for containerd ready; containerd is backing off: exit status 1; ClusterDNS is not met: no pods")
	assert.DeepEqual(t, errdefs.ReportOf(err).Hints, []string{
		"run kubectl for the cluster of the node: get pods\nshow the status of the node\nstop the node"})
	assert.ErrorContains(t, timedOut(n, status.MilestoneNode, nil), "namespaces")
}

// TestHelperReports checks that the error of a helper process is returned. The helper fails because the lock's path is a directory.
func TestHelperReports(t *testing.T) {
	home(t)
	cfg := config.Default()
	n, err := New(cfg, Options{})
	assert.NilError(t, err)
	assert.NilError(t, os.MkdirAll(n.Data().Dir, 0o700))
	assert.NilError(t, os.MkdirAll(n.Runtime().Lock(), 0o700)) // a directory instead of the lock file
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = n.DeleteData(ctx)
	assert.ErrorContains(t, err, "open the lock")
	_, err = os.Stat(n.Data().Dir)
	assert.NilError(t, err, "the data must not be removed")
}
