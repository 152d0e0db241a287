package trial

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// The test binary is the helper too, and runs tests as process 1 of a mount namespace with a planted fault.
func TestMain(m *testing.M) {
	roles := map[string]func() error{layout.RoleTrial: Wait, layout.RoleTrialInside: Do}
	role, _ := layout.TakeRole()
	if run := roles[role]; run != nil {
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testutil.QuickChildren()
	os.Exit(m.Run())
}

// program returns the path of a program, or "".
func program(name string) string {
	path, _ := exec.LookPath(name)
	return path
}

// own is a trial in which only the own id is mapped.
func own(t *testing.T) Request {
	t.Helper()
	testutil.Require(t, testutil.UserNS)
	return Request{Work: Work{IP: program("ip"), NFT: program("nft"), Dir: t.TempDir()}}
}

// faulty returns the failed steps, except those that need features that not every test machine has.
func faulty(t *testing.T, r Request) []Step {
	t.Helper()
	result, err := Run(t.Context(), r)
	assert.NilError(t, err)
	var steps []Step
	for s, f := range result {
		t.Logf("%s: %v", s, f)
		if !slices.Contains([]Step{StepOverlay, StepProc, StepCgroup}, s) {
			steps = append(steps, s)
		}
	}
	slices.Sort(steps)
	return steps
}

func TestTrial(t *testing.T) {
	t.Parallel()
	r := own(t)
	testutil.Require(t, testutil.Program("ip"), testutil.Program("nft"), tun)
	r.Work.Tun, r.NSEnter, r.Slirp = "/dev/net/tun", program("nsenter"), program("slirp4netns")
	r.Work.Mount, r.Work.Umount = program("mount"), program("umount")
	assert.Equal(t, len(faulty(t, r)), 0)
	left, err := os.ReadDir(r.Work.Dir)
	assert.NilError(t, err)
	assert.Equal(t, len(left), 0)
}

var tun = testutil.Requirement{Name: "tun", Check: func() error { return unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK) }}

// Each case plants a fault that the trial must find, and no other one.
func TestFaultsAreFound(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		set  func(*testing.T, *Request)
		want []Step
	}{
		"a device that is not a TUN device": {func(_ *testing.T, r *Request) { r.Work.Tun = "/dev/null" }, []Step{StepTun}},
		"no device":                         {func(_ *testing.T, r *Request) { r.Work.Tun = "/nonexistent" }, []Step{StepTun}},
		"an id that is not mapped":          {func(_ *testing.T, r *Request) { r.Work.LastID = 7 }, []Step{StepOwner}},
		"a program that does not run":       {func(_ *testing.T, r *Request) { r.Work.NFT = "/dev/null" }, []Step{StepNAT}},
		"an nsenter that does not run": {func(t *testing.T, r *Request) {
			testutil.Require(t, tun, testutil.Program("ip"))
			r.Work.Tun, r.NSEnter = "/dev/net/tun", "/dev/null"
		}, []Step{StepEnter}},
		"a slirp4netns that does not run": {func(t *testing.T, r *Request) {
			testutil.Require(t, tun, testutil.Program("ip"), testutil.Program("nsenter"))
			r.Work.Tun, r.NSEnter, r.Slirp = "/dev/net/tun", program("nsenter"), filepath.Join(t.TempDir(), "slirp4netns")
			testutil.Script(t, r.Slirp, "echo broken >&2; exit 3\n")
		}, []Step{StepUplink}},
		"a mount that does not run": {func(_ *testing.T, r *Request) { r.Work.Mount, r.Work.Umount = "/dev/null", "/dev/null" }, []Step{StepMount}},
		"iptables instead of nft": {func(t *testing.T, r *Request) {
			r.Work.NFT, r.Work.IPTables = "/dev/null", filepath.Join(t.TempDir(), "iptables")
			testutil.Script(t, r.Work.IPTables, "exit 0\n")
		}, nil},
		"ids that cannot be mapped": {func(t *testing.T, r *Request) {
			r.UIDs.Program = filepath.Join(t.TempDir(), "newuidmap")
			testutil.Script(t, r.UIDs.Program, "echo \"first $*\"; echo no >&2; exit 1\n")
		}, []Step{StepMapUIDs}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := own(t)
			tc.set(t, &r)
			assert.DeepEqual(t, faulty(t, r), tc.want)
		})
	}
}

// TestMountFlagsAreFound tries a directory on mounts with restrictive flags, in a mount namespace of its own.
func TestMountFlagsAreFound(t *testing.T) {
	const inner = "TRIAL_TEST_FLAGS"
	if os.Getenv(inner) != "" {
		for flags, want := range map[uintptr][]Step{
			0: nil, unix.MS_NOEXEC: {StepExec}, unix.MS_RDONLY: {StepOwner}, unix.MS_NODEV | unix.MS_NOSUID: nil,
			mountNoSymfollow: {StepSymlink},
		} {
			dir := t.TempDir()
			assert.NilError(t, unix.Mount("none", dir, "tmpfs", flags, ""))
			got := faulty(t, Request{Work: Work{Dir: dir}})
			assert.NilError(t, unix.Unmount(dir, unix.MNT_DETACH))
			assert.DeepEqual(t, got, want)
		}
		return
	}
	t.Parallel()
	testutil.Require(t, testutil.UserNS)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestMountFlagsAreFound$")
	cmd.Env = append(os.Environ(), inner+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	assert.NilError(t, err, "%s", out)
}

// mountNoSymfollow is MS_NOSYMFOLLOW of mount(2).
const mountNoSymfollow = 256

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r := own(t)
	r.Work.IP = filepath.Join(t.TempDir(), "ip")
	testutil.Script(t, r.Work.IP, "sleep 60\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Run(ctx, r)
	assert.Assert(t, err != nil || ctx.Err() != nil)
}
