package hostsetup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// envEnter makes the test binary call Enter for the user in its value.
const envEnter = "HOSTSETUP_TEST_ENTER"

// envScript is the shell script that it runs there. Without it, it runs report.
const envScript = "HOSTSETUP_TEST_SCRIPT"

// envKilled makes the test binary wait until it is killed.
const envKilled = "HOSTSETUP_TEST_KILLED"

// report prints the properties of the process.
const report = `id -u; id -g; id -G; pwd; umask; ulimit -Sn; cat /proc/self/cgroup; grep NoNewPrivs /proc/self/status; env | sort; stat -c '%U %a' "$XDG_RUNTIME_DIR"`

func TestMain(m *testing.M) {
	if os.Getenv(envKilled) != "" {
		fmt.Fprintln(os.Stderr, killAfter(time.Millisecond))
		for { // not select {}, which the runtime reports as a deadlock
			_ = unix.Pause()
		}
	}
	if user := os.Getenv(envEnter); user != "" {
		script := report
		if s := os.Getenv(envScript); s != "" {
			script = s
		}
		code, err := Enter(EnterOptions{User: user, Exe: "/bin/sh", Args: []string{"-c", script}})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = errdefs.ExitCode(err)
		}
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func enter(t *testing.T, user string) (string, error) {
	t.Helper()
	exe, err := os.Executable()
	assert.NilError(t, err)
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = []string{envEnter + "=" + user, "SECRET=x", "TERM=vt100", "LC_ALL=C", "ROOTLESSNODE_NAME=n", "HOME=/root", "XDG_RUNTIME_DIR=/run/user/0",
		testutil.QuickExit}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestSetupAndEnter creates and sets up an account on the real host without systemd, enters it as root, and undoes everything.
func TestSetupAndEnter(t *testing.T) {
	testutil.Require(t, testutil.Root, testutil.Cgroup2, testutil.Program("useradd"), testutil.Program("userdel"))
	user := "rnsetup" + strconv.Itoa(os.Getpid())
	noSystemd := false
	o := Options{User: user, CreateUser: true, Systemd: &noSystemd}
	plan := func() *Plan {
		p, err := NewPlan(o)
		assert.NilError(t, err)
		// Only run the steps that change nothing but this account.
		p.Steps = slices.DeleteFunc(p.Steps, func(s Step) bool {
			return !slices.Contains([]string{"account", "subids", "cgroup", "runtime-dir"}, s.Name)
		})
		return p
	}
	probe := plan()
	if _, err := cgroupv2.DetectHost(cgroupv2.Options{}); err != nil {
		t.Skip(err)
	}
	script, err := probe.Script()
	assert.NilError(t, err)
	assert.Assert(t, strings.Contains(script, "/rootlessnode/user-$(id -u "+user+")"), script)

	t.Cleanup(func() {
		if p, err := NewPlan(Options{User: user, Systemd: &noSystemd}); err == nil { // otherwise it is removed already
			_ = p.Undo(context.Background(), func(Result) {})
		}
		_ = exec.CommandContext(context.Background(), "userdel", "-r", user).Run()
	})
	_, err = outcomes(plan().Run, t)
	assert.NilError(t, err)
	got, err := outcomes(plan().Run, t)
	assert.NilError(t, err)
	assert.DeepEqual(t, got, []string{"account: already", "subids: already", "cgroup: already", "runtime-dir: already"})

	a, ok, err := hostinfo.Lookup(t.Context(), "", user, "")
	assert.NilError(t, err)
	assert.Assert(t, ok)
	out, err := enter(t, user)
	assert.NilError(t, err, out)
	lines := strings.Split(out, "\n")
	runtimeDir := filepath.Join("/run/user", strconv.Itoa(a.UID))
	assert.DeepEqual(t, lines[:5], []string{strconv.Itoa(a.UID), strconv.Itoa(a.GID), strconv.Itoa(a.GID), a.Home, "0022"})
	limit, err := strconv.Atoi(lines[5])
	assert.NilError(t, err)
	var own unix.Rlimit
	assert.NilError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &own))
	assert.Assert(t, uint64(limit) >= min(hostinfo.OpenFiles, own.Max), "the limit must be raised as far as root may")
	for _, want := range []string{
		"0::/rootlessnode/user-" + lines[0] + "/enter", "NoNewPrivs:\t0", "HOME=" + a.Home, "USER=" + user, "LOGNAME=" + user,
		"XDG_RUNTIME_DIR=" + runtimeDir, "TERM=vt100", "LC_ALL=C", "ROOTLESSNODE_NAME=n", "PATH=" + userPath, user + " 700",
	} {
		assert.Assert(t, slices.Contains(lines, want), "%s is not in\n%s", want, out)
	}
	assert.Assert(t, !strings.Contains(out, "SECRET"), out)

	checkTerminals(t, user)
	checkInherited(t, user)
	checkFrozen(t, user, a.UID)

	o.CreateUser = false
	_, err = outcomes(plan().Undo, t)
	assert.NilError(t, err)
	_, ok, err = hostinfo.Lookup(t.Context(), "", user, "")
	assert.NilError(t, err)
	assert.Assert(t, !ok)
	for _, gone := range []string{runtimeDir, recordPath(newEnv(o), user)} {
		_, err = os.Stat(gone)
		assert.ErrorIs(t, err, os.ErrNotExist, gone)
	}
	assert.NilError(t, os.RemoveAll(a.Home))

	out, err = enter(t, user)
	assert.Assert(t, err != nil)
	assert.Equal(t, out, "enter: user "+user+" does not exist\n")
}

func TestEnterRefuses(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		_, err := Enter(EnterOptions{User: "x", Exe: "/bin/rootlessnode", Args: []string{"up"}})
		assert.Error(t, err, "enter: only root can become another user")
		assert.DeepEqual(t, errdefs.ReportOf(err).Hints, []string{"sudo /bin/rootlessnode host enter --user x -- up"})
		return
	}
	for user, want := range map[string]string{
		"no-such-account": "enter: user no-such-account does not exist\n",
		"root":            "enter: user root is root: a node must be run by an ordinary user\n",
		"nobody":          "enter: no cgroup is prepared for user nobody\n",
	} {
		out, err := enter(t, user)
		assert.Equal(t, out, want)
		var exit *exec.ExitError
		assert.Assert(t, err != nil)
		assert.ErrorType(t, err, exit)
	}
}

func TestUserEnv(t *testing.T) {
	t.Parallel()
	got := userEnv(hostinfo.Account{Name: "u", Home: "/home/u"}, "/run/user/7",
		[]string{"TERM=x", "LANG=C", "LC_TIME=C", "PATH=/evil", "LD_PRELOAD=/evil", "HOME=/root", "ROOTLESSNODE_NAME=n", "_ROOTLESSNODE_ROLE=node", "NO_COLOR=1"})
	assert.DeepEqual(t, got, []string{
		"HOME=/home/u", "USER=u", "LOGNAME=u", "SHELL=/bin/sh", "PATH=" + userPath, "XDG_RUNTIME_DIR=/run/user/7",
		"TERM=x", "LANG=C", "LC_TIME=C", "ROOTLESSNODE_NAME=n", "NO_COLOR=1",
	})
}

// TestKillAfter checks that a process that does not execute its program, for example because it is frozen, is killed.
func TestKillAfter(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = []string{envKilled + "=1"}
	out, err := cmd.CombinedOutput()
	assert.ErrorContains(t, err, "killed")
	assert.Equal(t, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), syscall.SIGKILL)
	assert.Equal(t, string(out), "<nil>\n")
}
