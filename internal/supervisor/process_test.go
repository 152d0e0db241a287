package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestProcessAttributes(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	assert.NilError(t, err)
	score := 700
	u := s.unit("a")
	u.Process = func() (Process, error) {
		p := helperProcess(s.path, "a")
		p.Args, p.Dir, p.OOMScoreAdj = []string{"called-so", "first"}, dir, &score
		p.Env = append(p.Env, "EXTRA=more")
		p.LogPath = filepath.Join(dir, "a.log")
		return p, nil
	}
	tg := newTestGroup(t, Options{}, u).begin()
	p := s.accept("a")
	tg.await("a", Ready)
	assert.Equal(t, p.do("where"), dir+" [called-so first] more")
	assert.Equal(t, p.do("pgrp"), strconv.Itoa(p.pid))
	assert.Equal(t, p.do("read /proc/self/oom_score_adj"), "700")
	assert.Equal(t, tg.status("a").PID, p.pid)

	p.do("polite")
	assert.NilError(t, tg.end())
	p.gone()
	log, err := os.ReadFile(filepath.Join(dir, "a.log"))
	assert.NilError(t, err)
	assert.Equal(t, string(log), "bye\n")
	info, err := os.Stat(filepath.Join(dir, "a.log"))
	assert.NilError(t, err)
	assert.Equal(t, info.Mode().Perm(), os.FileMode(0o600))
}

func TestCrashRestartsOneAndKeepsTheOthers(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	tg := newTestGroup(t, Options{}, s.unit("base"), s.unit("top", "base"), s.unit("other")).begin()
	base, top, other := s.accept("base"), s.accept("top"), s.accept("other")
	tg.await("base", Ready)

	base.kill()
	again := s.accept("base")
	tg.await("base", Ready)
	assert.Assert(t, again.pid != base.pid)
	assert.Equal(t, tg.status("base").Restarts, 1)
	for _, p := range []*helper{top, other} {
		assert.Equal(t, p.do("hello"), "ok")
	}
	assert.Equal(t, tg.path("top"), "waiting starting running ready")
	assert.NilError(t, tg.end())
	for _, p := range []*helper{again, top, other} {
		p.gone()
	}
}

func TestStopsInReverseOrder(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	tg := newTestGroup(t, Options{}, s.unit("a"), s.unit("b", "a"), s.unit("c", "b")).begin()
	for _, name := range []string{"a", "b", "c"} {
		s.accept(name)
		tg.await(name, Ready)
	}
	assert.NilError(t, tg.end())
	var ended []string
	for _, tr := range tg.seen() {
		if tr.To == Stopped {
			ended = append(ended, tr.Unit)
		}
	}
	assert.DeepEqual(t, ended, []string{"c", "b", "a"})
}

func TestGivingUpReportsLastLines(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	logPath := filepath.Join(t.TempDir(), "a.log")
	u := s.unit("a")
	u.Process = func() (Process, error) {
		p := helperProcess(s.path, "a")
		p.LogPath = logPath
		return p, nil
	}
	u.Essential, u.GiveUpAfter = true, 2
	u.Backoff = Backoff{Initial: time.Millisecond}
	u.Ready = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	tg := newTestGroup(t, Options{}, u, s.unit("bystander")).begin()
	for range 2 {
		p := s.accept("a")
		p.do("print bind: address already in use")
		p.exit(3)
	}
	<-tg.done
	assert.Error(t, tg.err, "a: gave up after 2 failed starts: exited with status 3")
	assert.Assert(t, errors.Is(tg.err, errdefs.ErrComponent))
	r := errdefs.ReportOf(tg.err)
	assert.Equal(t, r.Component, "a")
	assert.Equal(t, r.LogPath, logPath)
	assert.DeepEqual(t, r.LogTail, []string{"bind: address already in use", "bind: address already in use"})
	assert.Equal(t, tg.status("bystander").State, Stopped)
	assert.ErrorContains(t, tg.g.WaitFor(context.Background(), "a", Ready), "gave up")
}

func TestTermIgnoringProcessIsKilled(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	u := s.unit("a")
	u.StopGrace = 50 * time.Millisecond
	tg := newTestGroup(t, Options{}, u).begin()
	p := s.accept("a")
	p.do("deaf")
	tg.await("a", Ready)
	assert.NilError(t, tg.end())
	p.gone()
	assert.Equal(t, tg.status("a").Reason, "did not exit within 50ms of SIGTERM; killed")
}

func TestExitKillsTheProcessGroup(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	tg := newTestGroup(t, Options{}, s.unit("a")).begin()
	p := s.accept("a")
	p.do("spawn kid")
	kid := s.accept("kid")
	kid.do("deaf")
	tg.await("a", Ready)
	p.kill()
	kid.gone()

	// So does a regular stop of the main process.
	p = s.accept("a")
	p.do("spawn kid")
	kid = s.accept("kid")
	kid.do("deaf")
	tg.await("a", Ready)
	assert.NilError(t, tg.end())
	kid.gone()
}

func TestKeptChildrenSurvive(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	u := s.unit("a")
	u.KeepChildren = true
	tg := newTestGroup(t, Options{}, u).begin()
	p := s.accept("a")
	p.do("spawn shim")
	shim := s.accept("shim")
	tg.await("a", Ready)

	p.kill()
	p = s.accept("a")
	tg.await("a", Ready)
	assert.Equal(t, shim.do("hello"), "ok")
	// It still writes to the pipe of the process that started it.
	assert.Equal(t, shim.do("print from the shim"), "ok")

	p.do("spawn second")
	second := s.accept("second")
	assert.NilError(t, tg.g.Restart("a"))
	p.gone()
	p = s.accept("a")
	tg.await("a", Ready)
	assert.Equal(t, shim.do("hello"), "ok")
	assert.Equal(t, second.do("hello"), "ok")
	assert.Assert(t, is.Contains(tg.status("a").Tail, "from the shim"))

	assert.NilError(t, tg.end())
	p.gone()
	for _, kept := range []*helper{shim, second} {
		assert.Equal(t, kept.do("hello"), "ok")
		kept.exit(0)
	}
}

func TestCgroup(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Cgroup2, testutil.Root)
	mount, err := testutil.Cgroup2Mount()
	assert.NilError(t, err)
	dir, err := os.MkdirTemp(mount, "supervisor-test-")
	if err != nil {
		t.Skipf("make a cgroup: %v", err)
	}
	t.Cleanup(func() { assert.NilError(t, os.Remove(dir)) })
	s := newControl(t)
	u := s.unit("a")
	u.Process = func() (Process, error) {
		p := helperProcess(s.path, "a")
		p.CgroupDir = dir
		return p, nil
	}
	tg := newTestGroup(t, Options{}, u).begin()
	p := s.accept("a")
	assert.Assert(t, is.Contains(p.do("read /proc/self/cgroup"), filepath.Base(dir)))
	// A process in another session is not reached by a signal to the process group.
	p.do("spawn-session kid")
	kid := s.accept("kid")
	kid.do("deaf")
	tg.await("a", Ready)
	p.kill()
	kid.gone()

	p = s.accept("a")
	p.do("spawn-session kid")
	kid = s.accept("kid")
	tg.await("a", Ready)
	assert.NilError(t, tg.end())
	kid.gone()
}

func TestStartFaults(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		p    Process
		want string
	}{
		"relative":  {Process{Path: "kubelet"}, `start "kubelet": path is not absolute`},
		"missing":   {Process{Path: "/nowhere/kubelet"}, "start: fork/exec /nowhere/kubelet: no such file or directory"},
		"no cgroup": {Process{Path: "/bin/sh", CgroupDir: "/nowhere"}, "open cgroup: open /nowhere: no such file or directory"},
		"no log":    {Process{Path: "/bin/sh", LogPath: "/nowhere/log"}, "open log: open /nowhere/log: no such file or directory"},
		"not a cgroup": {Process{Path: "/bin/sh", CgroupDir: "/usr"},
			"start in cgroup /usr: fork/exec /bin/sh: bad file descriptor"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := Unit{Name: "a", Essential: true, GiveUpAfter: 1, Process: func() (Process, error) { return tc.p, nil }}
			tg := newTestGroup(t, Options{}, u).begin()
			<-tg.done
			assert.Error(t, tg.err, "a: gave up after 1 failed starts: "+tc.want)
			assert.Equal(t, tg.path("a"), "waiting starting failed")
		})
	}
}

func TestOneShotProcess(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	u := s.unit("first")
	u.OneShot = true
	u.Backoff.Initial = time.Millisecond
	then := s.unit("then")
	then.Needs = []Need{{Name: "first", State: Done}}
	tg := newTestGroup(t, Options{}, u, then).begin()
	s.accept("first").exit(1)
	s.accept("first").exit(0)
	s.accept("then")
	tg.await("then", Ready)
	assert.Equal(t, tg.path("first"), "waiting starting running backoff waiting starting running done")
	assert.NilError(t, tg.end())
	assert.Equal(t, tg.status("first").State, Done)
}

func TestCancelBeforeReadyLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	u := s.unit("a")
	u.Ready = Poll(time.Hour, "something", func(context.Context) error { return errors.New("never") })
	tg := newTestGroup(t, Options{}, u).begin()
	p := s.accept("a")
	assert.NilError(t, tg.end())
	p.gone()
	assert.Equal(t, tg.path("a"), "waiting starting running stopping stopped")
}

func TestBeforeStopRunsWhileTheProcessLives(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	var top *helper
	var calls []string
	base := s.unit("base")
	base.BeforeStop = func(ctx context.Context) error {
		top.gone()
		calls = append(calls, "before stop")
		return errors.New("ignored: the unit is stopped nevertheless")
	}
	tg := newTestGroup(t, Options{}, base, s.unit("top", "base")).begin()
	s.accept("base")
	top = s.accept("top")
	tg.await("top", Ready)
	assert.NilError(t, tg.g.Restart("base"))
	p := s.accept("base")
	tg.await("base", Ready)
	assert.NilError(t, tg.end())
	p.gone()
	assert.DeepEqual(t, calls, []string{"before stop"})
}

func TestDeathEndsBeforeStop(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	u := s.unit("a")
	var p *helper
	u.BeforeStopTimeout = time.Hour
	u.BeforeStop = func(ctx context.Context) error {
		p.kill()
		<-ctx.Done()
		return ctx.Err()
	}
	tg := newTestGroup(t, Options{}, u).begin()
	p = s.accept("a")
	tg.await("a", Ready)
	assert.NilError(t, tg.end())
}

func TestKilledSupervisorLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	exe, err := os.Executable()
	assert.NilError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envGroup+"=1", envControl+"="+s.path)
	assert.NilError(t, cmd.Start())
	// helperProcess clears envGroup, so that the child of the supervisor runs as a helper.
	p := s.accept("only")
	assert.NilError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	p.gone()
}

// TestProcessesOutliveThreads ends many threads: the end of the thread that created a process would kill the process.
func TestProcessesOutliveThreads(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	tg := newTestGroup(t, Options{}, s.unit("a"), s.unit("b")).begin()
	a, b := s.accept("a"), s.accept("b")
	var wg sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		wg.Go(runtime.LockOSThread) // Returns locked: the thread ends.
	}
	wg.Wait()
	assert.Equal(t, a.do("hello"), "ok")
	assert.Equal(t, b.do("hello"), "ok")
	assert.NilError(t, tg.end())
	assert.Equal(t, tg.path("a"), "waiting starting running ready stopping stopped")
}

func TestLogIsRotated(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	path := filepath.Join(t.TempDir(), "a.log")
	assert.NilError(t, os.WriteFile(path, []byte(strings.Repeat("old\n", 1000)), 0o600))
	const max = 64 << 10
	u := s.unit("a")
	u.Process = func() (Process, error) {
		p := helperProcess(s.path, "a")
		p.LogPath = path
		return p, nil
	}
	tg := newTestGroup(t, Options{LogMaxBytes: 4000, TailLines: 3}, u).begin()
	p := s.accept("a")
	old, err := os.ReadFile(path + ".1")
	assert.NilError(t, err)
	assert.Assert(t, strings.HasPrefix(string(old), "old\n"))

	p.do("flood 5000")
	assert.NilError(t, tg.end())
	assert.DeepEqual(t, len(tg.status("a").Tail), 3)
	assert.Assert(t, strings.HasPrefix(tg.status("a").Tail[2], "line 4999 "))
	for _, f := range []string{path, path + ".1"} {
		info, err := os.Stat(f)
		assert.NilError(t, err)
		assert.Assert(t, info.Size() < max, "%s has %d bytes", f, info.Size())
	}
}

func TestFullDiskDoesNotStopTheProcess(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	u := s.unit("a")
	u.Process = func() (Process, error) {
		p := helperProcess(s.path, "a")
		p.LogPath = "/dev/full"
		return p, nil
	}
	tg := newTestGroup(t, Options{}, u).begin()
	p := s.accept("a")
	p.do("flood 3000")
	p.do("print the end")
	p.exit(0)
	s.accept("a")
	assert.NilError(t, tg.end())
	var tail []string
	for _, tr := range tg.seen() {
		if tr.To == BackingOff {
			tail = tr.Tail
		}
	}
	assert.Equal(t, len(tail), DefaultTailLines)
	assert.Equal(t, tail[len(tail)-1], "the end")
}

// TestExplain checks that the cause of a crash is found before a long stack trace, but not in the output of an earlier process, and that its
// hints are kept.
func TestExplain(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	u := s.unit("a")
	u.GiveUpAfter, u.Essential = 2, true
	u.Explain = func(lines []string) error {
		if i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "panic: cause ") }); i >= 0 {
			return errdefs.WithHint(errors.New(lines[i]), "fix it")
		}
		return nil
	}
	u.Ready = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	tg := newTestGroup(t, Options{}, u).begin()
	first := s.accept("a")
	first.do("print panic: cause 1")
	first.exit(3)
	second := s.accept("a")
	second.do("print panic: cause 2")
	for range 2 * recentFactor * DefaultTailLines {
		second.do("print stack")
	}
	second.exit(3)
	<-tg.done
	assert.Error(t, tg.err, "a: gave up after 2 failed starts: exited with status 3: panic: cause 2")
	assert.Assert(t, is.Contains(errdefs.ReportOf(tg.err).Hints, "fix it"))
	for _, tr := range tg.seen() {
		if tr.To == BackingOff {
			assert.Assert(t, is.Contains(tr.Reason, "exited with status 3: panic: cause 1; restarting in"))
		}
	}
}

func TestSignalsByName(t *testing.T) {
	t.Parallel()
	s := newControl(t)
	tg := newTestGroup(t, Options{}, s.unit("a")).begin()
	p := s.accept("a")
	tg.await("a", Ready)
	assert.NilError(t, syscall.Kill(p.pid, syscall.SIGINT))
	p.gone()
	s.accept("a")
	tg.await("a", Ready)
	for _, tr := range tg.seen() {
		if tr.To == BackingOff {
			assert.Assert(t, is.Contains(tr.Reason, "restarting in 100ms"), fmt.Sprint(tr))
			assert.Equal(t, tr.PID, p.pid)
		}
	}
}
