package cgroupv2

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func assertPrepared(t *testing.T, sb *sandbox) {
	t.Helper()
	for _, d := range []string{sb.host.preparedFor(sandboxUID), filepath.Join(sb.host.preparedFor(sandboxUID), enterLeaf)} {
		for _, f := range delegatedFiles() {
			st, err := os.Stat(filepath.Join(d, f))
			assert.NilError(t, err)
			assert.Equal(t, int(st.Sys().(*syscall.Stat_t).Uid), sandboxUID, filepath.Join(d, f))
		}
	}
	available, err := readList(sb.dir, controllersFile)
	assert.NilError(t, err)
	got, err := readList(sb.host.preparedFor(sandboxUID), controllersFile)
	assert.NilError(t, err)
	assert.DeepEqual(t, sorted(got), sorted(available))
}

func TestPrepare(t *testing.T) {
	testutil.Require(t, testutil.Root)
	sb := newSandbox(t)
	for range 2 {
		dir, err := Prepare(sb.host, sandboxUID, sandboxUID)
		assert.NilError(t, err)
		assert.Equal(t, dir, sb.host.preparedFor(sandboxUID))
		assertPrepared(t, sb)
	}
	p := mover(t, sb, "")
	assert.Equal(t, cgroupOf(t, p.Process.Pid), filepath.Join(sb.host.preparedFor(sandboxUID), "enter"))

	_, err := Prepare(sb.host, sandboxUID+1, sandboxUID+1)
	assert.NilError(t, err)
	assert.NilError(t, RemovePrepared(sb.host, sandboxUID+1))
	assertPrepared(t, sb)
	for range 2 {
		assert.NilError(t, RemovePrepared(sb.host, sandboxUID))
	}
	assert.Assert(t, p.Wait() != nil, "remaining processes are killed")
	left, err := subdirs(sb.dir)
	assert.NilError(t, err)
	assert.Equal(t, len(left), 0)
	on, err := readList(sb.dir, subtreeFile)
	assert.NilError(t, err)
	assert.Equal(t, len(on), 0)
}

// mover starts a process of root that opens the leaf of sb, runs the shell command meanwhile, changes to sandboxUID, and
// moves itself to the leaf. When mover returns, the process has moved, or is frozen.
func mover(t *testing.T, sb *sandbox, meanwhile string) *exec.Cmd {
	t.Helper()
	p := exec.Command("/proc/self/exe")
	p.Env = append(os.Environ(), envMove+"="+sb.host.Mount, "MEANWHILE="+meanwhile)
	p.Stderr = os.Stderr
	leaf := filepath.Join(sb.host.preparedFor(sandboxUID), enterLeaf)
	assert.NilError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	for deadline := time.Now().Add(removeTimeout); !slices.Contains(pidsIn(t, leaf), p.Process.Pid); {
		assert.Assert(t, time.Now().Before(deadline), "the process has not moved")
	}
	return p
}

// move runs in the process that mover starts. It does not return on success.
func move(mount string) error {
	f, err := OpenPrepared(Host{Mount: mount}, sandboxUID)
	if err != nil {
		return err
	}
	if out, err := exec.Command("sh", "-c", os.Getenv("MEANWHILE")).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if err := syscall.Setresuid(sandboxUID, sandboxUID, sandboxUID); err != nil {
		return err
	}
	if err := MoveSelf(f); err != nil {
		return err
	}
	select {}
}

// TestPreparedIsFrozen checks that an account that freezes its leaf after it was opened freezes a process of its own, never
// one of root.
func TestPreparedIsFrozen(t *testing.T) {
	testutil.Require(t, testutil.Root)
	sb := newSandbox(t)
	dir, err := Prepare(sb.host, sandboxUID, sandboxUID)
	assert.NilError(t, err)
	leaf := filepath.Join(dir, enterLeaf)
	p := mover(t, sb, "echo 1 > "+leaf+"/cgroup.freeze")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	assert.NilError(t, err)
	assert.Assert(t, strings.Contains(string(status), fmt.Sprintf("Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", sandboxUID)), "%s", status)
	assert.NilError(t, p.Process.Kill())
	assert.ErrorContains(t, p.Wait(), "killed")

	_, err = OpenPrepared(sb.host, sandboxUID)
	assert.Error(t, err, "enter prepared cgroup: the cgroup "+leaf+" is frozen")
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.DeepEqual(t, errdefs.ReportOf(err).Hints, []string{"echo 0 > " + leaf + "/cgroup.freeze"})
	assert.NilError(t, write(leaf, freezeFile, "0"))
	assert.NilError(t, write(dir, freezeFile, "1")) // the parent cgroup is frozen
	_, err = OpenPrepared(sb.host, sandboxUID)
	assert.ErrorContains(t, err, "is frozen")
	assert.NilError(t, write(dir, freezeFile, "0"))

	assert.NilError(t, write(leaf, typeFile, "threaded"))
	_, err = OpenPrepared(sb.host, sandboxUID)
	assert.Error(t, err, "enter prepared cgroup: the cgroup "+leaf+` has type "threaded"`)
}

func TestPrepareCommandsDoTheSame(t *testing.T) {
	testutil.Require(t, testutil.Root)
	sb := newSandbox(t)
	script := strings.Join(PrepareCommands(sb.host, sandboxUID, sandboxUID), "\n")
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	assert.NilError(t, err, "%s\n%s", script, out)
	assertPrepared(t, sb)
}

// TestPrepareInAContainer checks that Prepare and its commands move the processes of the mount point, which in a container
// is a cgroup with processes.
func TestPrepareInAContainer(t *testing.T) {
	testutil.Require(t, testutil.Root)
	for name, prepare := range map[string]func(*sandbox) error{
		"Prepare": func(sb *sandbox) error { _, err := Prepare(sb.host, sandboxUID, sandboxUID); return err },
		"commands": func(sb *sandbox) error {
			return exec.Command("sh", "-ec", strings.Join(PrepareCommands(sb.host, sandboxUID, sandboxUID), "\n")).Run()
		},
	} {
		t.Run(name, func(t *testing.T) {
			sb := newSandbox(t)
			p := cat(t)
			assert.NilError(t, movePid(sb.dir, p.Process.Pid))
			assert.NilError(t, prepare(sb))
			assertPrepared(t, sb)
			assert.Equal(t, len(pidsIn(t, sb.dir)), 0)
			assert.DeepEqual(t, pidsIn(t, filepath.Join(sb.dir, evacLeaf)), []int{p.Process.Pid})
		})
	}
}

// TestForeignCgroup is cases C4 and C5: a process of an account in a cgroup of root.
func TestForeignCgroup(t *testing.T) {
	if os.Getenv(envSandbox) == "" {
		testutil.Require(t, testutil.Root)
		sb := newSandbox(t)
		_, err := Prepare(sb.host, sandboxUID, sandboxUID)
		assert.NilError(t, err)
		foreign := filepath.Join(sb.dir, "foreign")
		assert.NilError(t, os.Mkdir(foreign, dirMode))
		sb.run(t, foreign, sandboxUID)
		return
	}
	h, err := DetectHost(sandboxOptions())
	assert.NilError(t, err)
	_, err = Detect(h, sandboxOptions())
	var nd *NotDelegatedError
	assert.Assert(t, errors.As(err, &nd))
	assert.Equal(t, nd.OwnerUID, 0)
	assert.DeepEqual(t, nd.NotWritable, []string{nd.Self, filepath.Join(nd.Self, procsFile), filepath.Join(nd.Self, subtreeFile)})
	assert.Equal(t, nd.Prepared, h.preparedFor(sandboxUID))
	t.Log(err, errdefs.ReportOf(err).Hints)
}

// TestThreadedCgroup is case C8: a threaded cgroup cannot contain a node.
func TestThreadedCgroup(t *testing.T) {
	testutil.Require(t, testutil.Root)
	sb := newSandbox(t)
	d := filepath.Join(sb.dir, "d")
	assert.NilError(t, os.Mkdir(d, dirMode))
	assert.NilError(t, write(d, typeFile, "threaded"))
	_, err := Claim(t.Context(), Delegation{Root: d, Source: SourceCurrent}, "a", Options{})
	assert.ErrorContains(t, err, `is "threaded", not "domain"`)
	assert.Assert(t, errors.Is(err, errdefs.ErrPreflight))
}
