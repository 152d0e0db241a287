package parent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// endLimit is how long a test waits for processes to end.
const endLimit = time.Minute

// rig is a node whose roles the test binary runs.
type rig struct {
	t    *testing.T
	cfg  *config.NodeConfig
	rt   layout.Runtime
	data layout.Data
	// logged is set if the parent writes to the node's log instead of the output that start returns.
	logged bool
}

// openLog opens the node's log as the host program does.
func (r *rig) openLog() *os.File {
	r.t.Helper()
	assert.NilError(r.t, os.MkdirAll(r.data.LogDir(), 0o700))
	log, err := os.OpenFile(r.data.Log(nodeLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	assert.NilError(r.t, err)
	return log
}

func newRig(t *testing.T) *rig {
	t.Helper()
	testutil.Require(t, testutil.OrdinaryUser, testutil.Subids, testutil.DelegatedCgroup, testutil.Program("slirp4netns"))
	name := fmt.Sprintf("p%d-%s", os.Getpid(), strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "/", "-"))
	dir, err := os.MkdirTemp(os.Getenv("XDG_RUNTIME_DIR"), "rn")
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, os.RemoveAll(dir)) })
	cfg := config.Default()
	cfg.Name, cfg.Network.Driver = name, config.DriverSlirp
	cfg.DataDir = filepath.Join(dir, "data")
	cfg.Complete(config.HostFacts{Hostname: "test", XDGDataHome: dir})
	return &rig{t: t, cfg: cfg, rt: layout.NewRuntime(dir, name), data: layout.NewData(cfg.DataDir)}
}

// start starts a parent whose child has the given fault.
func (r *rig) start(fault string) (cmd *exec.Cmd, output *strings.Builder) {
	r.t.Helper()
	encoded, err := json.Marshal(r.cfg)
	assert.NilError(r.t, err)
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envConfig+"="+string(encoded), envFault+"="+fault)
	cmd.Env = append(cmd.Env, layout.RoleEnv(layout.RoleParent, r.rt)...)
	output = &strings.Builder{}
	cmd.Stdout, cmd.Stderr = output, output
	if r.logged {
		log := r.openLog()
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
	}
	cmd.WaitDelay = 5 * time.Second // the guard has the same standard error for a short time
	assert.NilError(r.t, cmd.Start())
	return cmd, output
}

// ends waits for the parent and fails the test if it hangs.
func (r *rig) ends(cmd *exec.Cmd, output *strings.Builder) int {
	r.t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); _ = cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(endLimit):
		_ = cmd.Process.Kill()
		<-done
		r.t.Fatalf("the parent hangs:\n%s", output)
	}
	return cmd.ProcessState.ExitCode()
}

// gone waits until the run is cleaned up.
func (r *rig) gone(cgroup string) {
	r.t.Helper()
	r.eventually("everything is gone", func() error {
		if h, err := Holder(r.rt, r.data); err != nil || h.Locked {
			return fmt.Errorf("locked: %+v %w", h, err)
		}
		for _, p := range []string{r.rt.Dir, r.rt.Lock(), filepath.Dir(r.rt.Lock()), cgroup} {
			if _, err := os.Lstat(p); p != "" && err == nil {
				return fmt.Errorf("%s still exists", p)
			}
		}
		return nil
	})
}

func (r *rig) eventually(what string, check func() error) {
	r.t.Helper()
	deadline := time.After(endLimit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			r.t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

// ready waits for the node role and returns the cgroup and the parent's handover data.
func (r *rig) ready() (string, layout.HandoverInfo) {
	r.t.Helper()
	var h layout.HandoverInfo
	r.eventually("the node role runs", func() error {
		if _, err := os.Stat(r.rt.NodeSocket()); err != nil {
			return err
		}
		return layout.ReadJSON(r.rt.Handover(), &h)
	})
	return h.Cgroup.Path, h
}

// lives reports whether a process is running and not a zombie.
func lives(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, found := strings.Cut(string(b), ") ")
	return err == nil && found && !strings.HasPrefix(after, "Z")
}

// TestChildFails checks that the parent returns an error and cleans up when the child ends in any phase. RootlessKit's parent would wait
// forever after most of these failures. Only the log has the reason, because this child does not report it.
func TestChildFails(t *testing.T) {
	t.Parallel()
	for _, phase := range []string{"hello", "idmap", "copyup", "network", "target"} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.logged = true
			log := r.openLog()
			_, err := log.WriteString("error: of an earlier run\n")
			assert.NilError(t, errors.Join(err, log.Close()))
			cmd, output := r.start(phase)
			code := r.ends(cmd, output)
			assert.Equal(t, code, errdefs.ExitComponent, "%s", output)
			r.gone("")
			var report errdefs.Report
			assert.NilError(t, layout.ReadJSON(r.data.LastExit(), &report))
			assert.Assert(t, cmp.Contains(report.Message, "ended unexpectedly: exited with status"))
			assert.Equal(t, report.LogPath, r.data.Log(nodeLog))
			tail := strings.Join(report.LogTail, "\n")
			assert.Assert(t, cmp.Contains(tail, "error: "+map[bool]string{true: "the node role fails immediately", false: "fails in phase " + phase}[phase == "target"]))
			assert.Assert(t, !strings.Contains(tail, "earlier run"), tail)
		})
	}
}

// TestChildReports checks that the report of a role inside is the error of the node, with its class, hint and log.
func TestChildReports(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cmd, output := r.start("report")
	assert.Equal(t, r.ends(cmd, output), errdefs.ExitPreflight, "%s", output)
	r.gone("")
	var report errdefs.Report
	assert.NilError(t, layout.ReadJSON(r.data.LastExit(), &report))
	assert.DeepEqual(t, &report, insideReport())
}

func TestStops(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cmd, output := r.start("")
	cgroup, h := r.ready()
	assert.Equal(t, h.ParentPID, cmd.Process.Pid)
	assert.Equal(t, h.Network.IP, "10.0.2.100")
	assert.Assert(t, cmp.Contains(networkOf(t, h.ChildPID), "10.0.2.100/24"), "the node role runs before its network is ready")
	holder, err := Holder(r.rt, r.data)
	assert.NilError(t, err)
	assert.Equal(t, holder, LockHolder{Locked: true, ParentPID: cmd.Process.Pid})

	second, text := r.start("")
	assert.Equal(t, r.ends(second, text), errdefs.ExitOther)
	assert.Assert(t, cmp.Contains(text.String(), "already running (parent pid "+strconv.Itoa(cmd.Process.Pid)))

	assert.NilError(t, cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, r.ends(cmd, output), 0, "%s", output)
	r.gone(cgroup)
	_, err = os.Stat(r.data.LastExit())
	assert.Assert(t, errors.Is(err, os.ErrNotExist), "an orderly stop must not be reported as an error")
}

// TestStopsEarly checks that a stop before the node role listens is an orderly one.
func TestStopsEarly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cmd, output := r.start("slow")
	var h layout.HandoverInfo
	r.eventually("the child exists", func() error { return layout.ReadJSON(r.rt.Handover(), &h) })
	assert.NilError(t, cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, r.ends(cmd, output), 0, "%s", output)
	r.gone(h.Cgroup.Path)
	_, err := os.Stat(r.data.LastExit())
	assert.Assert(t, errors.Is(err, os.ErrNotExist), "a requested stop must not be reported as an error")
}

// TestStopIsLimited checks that a node that does not stop is killed after timeouts.stop, and that this is an error.
func TestStopIsLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.cfg.Timeouts.Stop = config.Duration(time.Second)
	cmd, output := r.start("stubborn")
	cgroup, _ := r.ready()
	assert.NilError(t, cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, r.ends(cmd, output), errdefs.ExitComponent, "%s", output)
	assert.Assert(t, cmp.Contains(output.String(), "did not stop in time"))
	r.gone(cgroup)
}

// TestParentKilled checks that the guard cleans up after the parent was killed.
func TestParentKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cmd, output := r.start("")
	cgroup, h := r.ready()
	assert.NilError(t, cmd.Process.Kill())
	r.ends(cmd, output)
	r.gone(cgroup)
	assert.Assert(t, !lives(h.ChildPID), "the child is still running")
	var report errdefs.Report
	assert.NilError(t, layout.ReadJSON(r.data.LastExit(), &report))
	assert.Assert(t, cmp.Contains(report.Message, "killed"))

	again, output := r.start("")
	r.ready()
	assert.NilError(t, again.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, r.ends(again, output), 0, "%s", output)
}

// guardPID returns the pid of the guard that a parent has started.
func guardPID(parent *exec.Cmd) (int, error) {
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(parent.Process.Pid), "-f", "rootlessnode: guard").Output()
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(out)))
}

// TestGuardKilled checks that a killed guard is replaced, and that the new guard cleans up.
func TestGuardKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cmd, output := r.start("")
	cgroup, _ := r.ready()
	first, err := guardPID(cmd)
	assert.NilError(t, err)
	assert.NilError(t, syscall.Kill(first, syscall.SIGKILL))
	r.eventually("another guard", func() error {
		pid, err := guardPID(cmd)
		if err == nil && pid == first {
			err = errors.New("still the first")
		}
		return err
	})
	assert.NilError(t, cmd.Process.Kill())
	r.ends(cmd, output)
	r.gone(cgroup)
}

// TestGuardKilledAtTheEnd checks that a parent that ends before it has replaced a killed guard leaves nothing.
func TestGuardKilledAtTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cmd, output := r.start("")
	cgroup, _ := r.ready()
	pid, err := guardPID(cmd)
	assert.NilError(t, err)
	assert.NilError(t, syscall.Kill(pid, syscall.SIGKILL))
	assert.NilError(t, cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, r.ends(cmd, output), 0, "%s", output)
	r.gone(cgroup)
}

// TestLockIsFreedWithItsFile checks that a lock is free after its file was removed.
func TestLockIsFreedWithItsFile(t *testing.T) {
	t.Parallel()
	rt := layout.NewRuntime(t.TempDir(), "x")
	lock, err := takeLock(rt)
	assert.NilError(t, err)
	_, err = takeLock(rt)
	assert.Assert(t, errors.Is(err, errdefs.ErrAlreadyRunning))
	assert.NilError(t, cleanUp(context.Background(), rt, ""))
	assert.NilError(t, lock.Close())
	h, err := Holder(rt, layout.Data{})
	assert.NilError(t, err)
	assert.Equal(t, h, LockHolder{})
	lock, err = takeLock(rt)
	assert.NilError(t, err)
	assert.NilError(t, lock.Close())
}

// TestLockOutlastsALook checks that Holder and takeLock do not release a record lock of this process.
func TestLockOutlastsALook(t *testing.T) {
	t.Parallel()
	rt := layout.NewRuntime(t.TempDir(), "x")
	lock, err := takeLock(rt)
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, lock.Close()) })
	h, err := Holder(rt, layout.Data{})
	assert.NilError(t, err)
	assert.Equal(t, h, LockHolder{Locked: true, ParentPID: os.Getpid()})
	_, err = takeLock(rt)
	assert.ErrorContains(t, err, fmt.Sprintf("parent pid %d", os.Getpid()))
	assertRecordLock(t, rt)
}

// assertRecordLock checks that this process holds the record lock, and releases it. Other processes use F_GETLK, which ignores
// locks of the calling process. F_OFD_GETLK finds them.
func assertRecordLock(t *testing.T, rt layout.Runtime) {
	t.Helper()
	f, err := os.OpenFile(rt.Lock(), os.O_RDWR, 0)
	assert.NilError(t, err)
	defer f.Close()
	record := unix.Flock_t{Type: unix.F_WRLCK}
	assert.NilError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &record))
	assert.Equal(t, record.Type, int16(unix.F_WRLCK), "the record lock must still be held")
	assert.Equal(t, int(record.Pid), os.Getpid())
}

// TestLockAfterLook checks that takeLock waits for a process that only looks at the lock at the same moment.
func TestLockAfterLook(t *testing.T) {
	t.Parallel()
	rt := layout.NewRuntime(t.TempDir(), "x")
	assert.NilError(t, os.MkdirAll(filepath.Dir(rt.Lock()), 0o700))
	look, err := os.Create(rt.Lock())
	assert.NilError(t, err)
	assert.NilError(t, unix.Flock(int(look.Fd()), unix.LOCK_SH))
	time.AfterFunc(lockRetry/20, func() { _ = look.Close() })
	lock, err := takeLock(rt)
	assert.NilError(t, err)
	assert.NilError(t, lock.Close())
}

// TestLockUnderLooks checks that calls of Holder at the same time neither keep takeLock from the lock nor release its record lock.
// An `up --foreground` under a service manager does both.
func TestLockUnderLooks(t *testing.T) {
	t.Parallel()
	rt := layout.NewRuntime(t.TempDir(), "x")
	var lookers sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		lookers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, err := Holder(rt, layout.Data{})
					assert.Check(t, err)
				}
			}
		})
	}
	defer lookers.Wait()
	defer close(stop)
	for range 200 {
		lock, err := takeLock(rt)
		assert.NilError(t, err)
		assertRecordLock(t, rt)
		assert.NilError(t, lock.Close())
	}
}

func TestWithSbin(t *testing.T) {
	t.Parallel()
	assert.Equal(t, withSbin("/usr/bin:/sbin"), "/usr/bin:/sbin:/usr/local/sbin:/usr/sbin")
	assert.Equal(t, withSbin(withSbin("/bin")), withSbin("/bin"))
}
