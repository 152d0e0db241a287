package cgroupv2

import (
	"context"
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
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/poll"
)

// leafOf creates a cgroup for a test and returns its directory.
func leafOf(t *testing.T, tree Tree, name string) string {
	t.Helper()
	dir, err := tree.EnsureLeaf(name)
	assert.NilError(t, err)
	return dir
}

// inLeaf starts a program in a cgroup.
func inLeaf(t *testing.T, dir string, name string, args ...string) *process {
	t.Helper()
	p := start(t, "", "sh", append([]string{"-c", `read go; exec "$@"`, "sh", name}, args...)...)
	assert.NilError(t, movePid(dir, p.Process.Pid))
	_, err := p.in.Write([]byte("go\n"))
	assert.NilError(t, err)
	return p
}

// checkKilled checks that SIGKILL ended the process.
func checkKilled(t *testing.T, p *process) {
	t.Helper()
	assert.ErrorContains(t, p.Wait(), "signal: killed")
}

// eachKill runs f with the functions that kill all processes of a cgroup: with cgroup.kill, and with pidfds.
func eachKill(f func(name string, kill func(ctx context.Context, dir string) error)) {
	f("file", func(ctx context.Context, dir string) error { return killAll(ctx, dir, Kill) })
	f("pidfds", Empty)
}

// bomb is a script of processes that keep forking. Each of 40 processes forks the next one and exits, so that it has ended before its pidfd
// could be used.
const bomb = `trap '' TERM HUP INT
again() { again & }
for i in 1 2 3 4 5 6 7 8 9 10; do for j in 1 2 3 4; do again; done; done
exec cat`

// TestKillForkBomb checks that processes which keep forking are all killed, and that a process outside is not.
func TestKillForkBomb(t *testing.T) {
	sb, here := inSandbox(t)
	if !here {
		return
	}
	_, s := claimHere(t, sb, "a")
	tree := Tree{Root: s.Path()}
	outside := inLeaf(t, leafOf(t, tree, "system/other"), "cat")
	eachKill(func(name string, kill func(context.Context, string) error) {
		dir := leafOf(t, tree, "kubepods/"+name)
		leader := inLeaf(t, dir, "sh", "-c", bomb)
		poll.WaitOn(t, func(poll.LogT) poll.Result {
			if n := len(pidsIn(t, dir)); n < 20 {
				return poll.Continue("%d processes", n)
			}
			return poll.Success()
		}, poll.WithTimeout(30*time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), removeTimeout)
		defer cancel()
		assert.NilError(t, kill(ctx, dir), name)
		checkKilled(t, leader)
		some, err := Populated(dir)
		assert.NilError(t, err)
		assert.Assert(t, !some, name)
	})
	assert.NilError(t, unix.Kill(outside.Process.Pid, 0))
	outside.end()
	assert.Assert(t, outside.ProcessState.Success())
	assert.NilError(t, s.Remove(t.Context()))
}

// TestKillFrozenCgroup checks that frozen and stopped processes are killed, also in cgroups below.
func TestKillFrozenCgroup(t *testing.T) {
	sb, here := inSandbox(t)
	if !here {
		return
	}
	_, s := claimHere(t, sb, "a")
	tree := Tree{Root: s.Path()}
	eachKill(func(name string, kill func(context.Context, string) error) {
		dir := leafOf(t, tree, "kubepods/"+name)
		processes := []*process{inLeaf(t, dir, "cat"), inLeaf(t, leafOf(t, tree, "kubepods/"+name+"/pod"), "cat")}
		assert.NilError(t, processes[0].Process.Signal(unix.SIGSTOP))
		assert.NilError(t, write(dir, freezeFile, "1"))
		assert.NilError(t, kill(t.Context(), dir), name)
		for _, p := range processes {
			checkKilled(t, p)
		}
	})
	assert.NilError(t, s.Remove(t.Context()))
}

// TestEmptyLeavesCgroupUsable checks that a process which is created in a cgroup after Empty is not killed. cgroup.kill would kill it on
// some kernels.
func TestEmptyLeavesCgroupUsable(t *testing.T) {
	sb, here := inSandbox(t)
	if !here {
		return
	}
	_, s := claimHere(t, sb, "a")
	dir := leafOf(t, Tree{Root: s.Path()}, "system/unit")
	p := inLeaf(t, dir, "cat")
	assert.NilError(t, Empty(t.Context(), dir))
	checkKilled(t, p)
	fd, err := os.Open(dir)
	assert.NilError(t, err)
	defer func() { _ = fd.Close() }()
	next := exec.Command("true")
	next.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
	assert.NilError(t, next.Run())
	assert.NilError(t, s.Remove(t.Context()))
}

// TestEmptyEndsWithContext checks that the wait is bounded, and that the error lists the processes.
func TestEmptyEndsWithContext(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ events, procs, want string }{
		"empty":    {"populated 0\nfrozen 0\n", "", ""},
		"stuck":    {"populated 1\nfrozen 0\n", "0\n", "processes remain after SIGKILL: DIR: processes are left: 0 () in DIR: context canceled"},
		"no field": {"frozen 0\n", "", "processes remain after SIGKILL: DIR: DIR/cgroup.events has no field populated"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			dir := t.TempDir()
			assert.NilError(t, os.WriteFile(filepath.Join(dir, eventsFile), []byte(tc.events), 0o600))
			assert.NilError(t, os.WriteFile(filepath.Join(dir, procsFile), []byte(tc.procs), 0o600))
			err := Empty(ctx, dir)
			if tc.want == "" {
				assert.NilError(t, err)
				return
			}
			assert.Error(t, err, strings.ReplaceAll(tc.want, "DIR", dir))
		})
	}
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	assert.NilError(t, Empty(t.Context(), nowhere))
	assert.NilError(t, Kill(nowhere))
	some, err := Populated(nowhere)
	assert.NilError(t, err)
	assert.Assert(t, !some)
}

// TestKillSparesReusedPid checks that without cgroup.kill a process is not killed if it is not listed any more after its pidfd was opened,
// because its process ID may have been reused.
func TestKillSparesReusedPid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	procs := filepath.Join(dir, procsFile)
	assert.NilError(t, unix.Mkfifo(procs, 0o600))
	foreign := cat(t)
	go func() {
		// The first opening is the first list of Kill, the second one is the list after the pidfd was opened.
		for _, text := range []string{strconv.Itoa(foreign.Process.Pid) + "\n", ""} {
			w, err := os.OpenFile(procs, os.O_WRONLY, 0)
			if err != nil {
				return
			}
			_, _ = w.WriteString(text)
			if text != "" {
				_ = os.Remove(procs) // the second list is another file
				_ = unix.Mkfifo(procs, 0o600)
			}
			_ = w.Close()
		}
	}()
	assert.NilError(t, Kill(dir))
	assert.NilError(t, unix.Kill(foreign.Process.Pid, 0))
	foreign.end()
	assert.Assert(t, foreign.ProcessState.Success())
}

// TestSignalManyProcesses checks that the number of open pidfds is limited.
func TestSignalManyProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var pids strings.Builder
	for i := range 3*maxHandles + 1 {
		pids.WriteString(strconv.Itoa(1<<30+i) + "\n")
	}
	p := cat(t)
	pids.WriteString(strconv.Itoa(p.Process.Pid) + "\n")
	assert.NilError(t, os.WriteFile(filepath.Join(dir, procsFile), []byte(pids.String()), 0o600))
	assert.NilError(t, Kill(dir))
	checkKilled(t, p)
}

// TestKillsAgain checks that processes which appear after the first list are killed too, also without cgroup.kill.
func TestKillsAgain(t *testing.T) {
	t.Parallel()
	eachKill(func(name string, kill func(context.Context, string) error) {
		dir := t.TempDir()
		set := func(file, text string) {
			assert.Check(t, os.WriteFile(filepath.Join(dir, file+".new"), []byte(text), 0o600))
			assert.Check(t, os.Rename(filepath.Join(dir, file+".new"), filepath.Join(dir, file)))
		}
		first, second := cat(t), cat(t)
		assert.NilError(t, os.WriteFile(filepath.Join(dir, eventsFile), []byte("populated 1\n"), 0o600))
		set(procsFile, strconv.Itoa(first.Process.Pid))
		var watcher sync.WaitGroup
		watcher.Go(func() {
			_ = first.Wait()
			set(procsFile, strconv.Itoa(second.Process.Pid))
			_ = second.Wait()
			assert.Check(t, write(dir, eventsFile, "populated 0\n"))
		})
		ctx, cancel := context.WithTimeout(t.Context(), removeTimeout)
		defer cancel()
		assert.NilError(t, kill(ctx, dir), name)
		watcher.Wait()
	})
}

// FuzzReadPids checks that no process ID is negative, because kill(2) and pidfd_open(2) give negative ones another meaning.
func FuzzReadPids(f *testing.F) {
	f.Add([]byte("1\n22\n0\n"))
	f.Add([]byte("-1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		assert.NilError(t, os.WriteFile(filepath.Join(dir, procsFile), data, 0o600))
		pids, err := readPids(dir)
		for _, pid := range pids {
			assert.Assert(t, is.Nil(err))
			assert.Assert(t, pid >= 0)
		}
	})
}
