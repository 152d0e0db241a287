package cgroupv2

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// The test binary runs itself in two further roles: to run one test inside a sandbox (envSandbox), and as a process that
// claims a subtree and keeps it until its standard input ends (envClaim).
const (
	envSandbox = "ROOTLESSNODE_TEST_SANDBOX"
	envClaim   = "ROOTLESSNODE_TEST_CLAIM"
	// envMove is the mount point below which a helper process moves itself to a prepared leaf.
	envMove = "ROOTLESSNODE_TEST_MOVE"
)

// sandboxUID is a user ID without an account, so that tests which need an ordinary user create no account.
const sandboxUID = 64123

func TestMain(m *testing.M) {
	if mount := os.Getenv(envMove); mount != "" {
		fmt.Println("error:", move(mount))
		os.Exit(1)
	}
	if name := os.Getenv(envClaim); name != "" {
		if err := holdClaim(name); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	testutil.QuickChildren()
	goleak.VerifyTestMain(m)
}

// holdClaim claims a subtree, prints "claimed PATH", and removes the subtree at the end of standard input.
func holdClaim(name string) error {
	ctx := context.Background()
	o := sandboxOptions()
	h, err := DetectHost(o)
	if err != nil {
		return err
	}
	d, err := Detect(h, o)
	if err != nil {
		return err
	}
	s, err := Claim(ctx, d, name, o)
	if err != nil {
		return err
	}
	fmt.Println("claimed", s.Path())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return s.Remove(ctx)
}

// sandbox is a cgroup that the test uses as the mount point of a tree.
type sandbox struct {
	dir  string
	host Host
}

func sandboxOptions() Options {
	dir := os.Getenv(envSandbox)
	return Options{
		MountInfo:  filepath.Join(os.Getenv("TMPDIR"), "mountinfo"),
		RuntimeDir: filepath.Join(os.Getenv("TMPDIR"), "no-manager"),
		Booted:     filepath.Join(dir, "not-booted"),
	}
}

// inSandbox runs the calling test again in a child process, as an ordinary user in the leaf "enter" of a prepared directory.
// It returns true in that process. In the original process it returns false after the child has ended and everything is
// removed.
func inSandbox(t *testing.T) (*sandbox, bool) {
	t.Helper()
	if dir := os.Getenv(envSandbox); dir != "" {
		h, err := DetectHost(sandboxOptions())
		assert.NilError(t, err)
		return &sandbox{dir: dir, host: h}, true
	}
	sb := newSandbox(t)
	uid := os.Geteuid()
	if uid == 0 {
		uid = sandboxUID
	}
	d, err := Prepare(sb.host, uid, uid)
	assert.NilError(t, err)
	sb.run(t, filepath.Join(d, enterLeaf), uid)
	left, err := subdirs(d)
	assert.NilError(t, err)
	assert.DeepEqual(t, left, []string{enterLeaf})
	on, err := readList(d, subtreeFile)
	assert.NilError(t, err)
	assert.Equal(t, len(on), 0, "controllers still enabled: %v", on)
	return sb, false
}

// newSandbox creates a sandbox in the real tree: for root in the mount point, for other accounts in their delegated cgroup.
func newSandbox(t *testing.T) *sandbox {
	t.Helper()
	testutil.Require(t, delegation())
	h, err := DetectHost(Options{})
	assert.NilError(t, err)
	top := h.Mount
	if os.Geteuid() == 0 {
		available, err := readList(top, controllersFile)
		assert.NilError(t, err)
		enable(top, available)
	} else {
		d, err := Detect(h, Options{})
		assert.NilError(t, err)
		top = d.Root
	}
	dir := filepath.Join(top, fmt.Sprintf("rn-test-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-")))
	assert.NilError(t, os.Mkdir(dir, dirMode))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
		defer cancel()
		assert.NilError(t, killAndRemove(ctx, dir))
		if others, err := subdirs(top); err == nil && len(others) == 0 && top == h.Mount {
			disableAll(top)
		}
	})
	return &sandbox{dir: dir, host: Host{Mount: dir, Self: "/"}}
}

// delegation requires a real tree in which the account may create cgroups: any tree for root, a delegated cgroup for others.
func delegation() testutil.Requirement {
	return testutil.Requirement{Name: "delegation", Check: func() error {
		h, err := DetectHost(Options{})
		if err != nil {
			return err
		}
		if os.Geteuid() == 0 {
			if h.ReadOnly {
				return fmt.Errorf("%s is mounted read-only", h.Mount)
			}
			return nil
		}
		d, err := Detect(h, Options{})
		if err == nil && d.Root == "" {
			err = fmt.Errorf("the tests do not ask systemd for a scope: run them in one (systemd-run --user --scope -p Delegate=yes)")
		}
		return err
	}}
}

// run runs the calling test in leaf as uid.
func (sb *sandbox) run(t *testing.T, leaf string, uid int) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "rn-cgroup-")
	assert.NilError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	assert.NilError(t, os.Chown(tmp, uid, uid))
	real, err := DetectHost(Options{})
	assert.NilError(t, err)
	rel := "/" + strings.TrimPrefix(strings.TrimPrefix(sb.dir, real.Mount), "/")
	line := fmt.Sprintf("1 0 0:1 %s %s rw - cgroup2 cgroup2 rw\n", rel, sb.dir)
	assert.NilError(t, os.WriteFile(filepath.Join(tmp, "mountinfo"), []byte(line), 0o644))

	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), envSandbox+"="+sb.dir, "TMPDIR="+tmp, "GOCOVERDIR="+tmp)
	cmd.Dir = "/"
	fd, err := os.Open(leaf)
	assert.NilError(t, err)
	defer fd.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd()), Pdeathsig: syscall.SIGKILL}
	if uid != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	runtime.LockOSThread() // Pdeathsig follows the thread that started the process
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	t.Logf("as uid %d in %s:\n%s", uid, leaf, out)
	assert.NilError(t, err)
}

// process is a process that runs until the end of its standard input.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(t *testing.T, env string, name string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(name, args...)}
	p.Env = append(os.Environ(), env)
	var err error
	p.in, err = p.StdinPipe()
	assert.NilError(t, err)
	out, err := p.StdoutPipe()
	assert.NilError(t, err)
	p.out = bufio.NewScanner(out)
	assert.NilError(t, p.Start())
	t.Cleanup(p.end)
	return p
}

// cat starts a process that does nothing.
func cat(t *testing.T) *process { return start(t, "", "cat") }

func (p *process) end() {
	_ = p.in.Close()
	_ = p.Wait()
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	assert.Assert(t, p.out.Scan(), "process ended early: %v", p.out.Err())
	return p.out.Text()
}

// cgroupOf returns the cgroup directory of a process in the real tree.
func cgroupOf(t *testing.T, pid int) string {
	t.Helper()
	h, err := DetectHost(Options{ProcSelfCgroup: filepath.Join("/proc", strconv.Itoa(pid), "cgroup")})
	assert.NilError(t, err)
	return h.SelfDir()
}

func pidsIn(t *testing.T, dir string) []int {
	t.Helper()
	pids, err := readPids(dir)
	assert.NilError(t, err)
	return pids
}
