package mountns

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

const (
	// envHost is the directory of the simulated host in which a test runs again.
	envHost = "ROOTLESSNODE_TEST_MOUNTNS_HOST"
	// envHelper makes the test binary run as a program; see helper.
	envHelper = "ROOTLESSNODE_TEST_MOUNTNS_HELPER"
	// envDir is the store's directory for a helper.
	envDir = "ROOTLESSNODE_TEST_MOUNTNS_DIR"
	// ordinaryUID is the ordinary user for the tests when they run as root.
	ordinaryUID = 65534
)

// Kinds of simulated hosts: the propagation of their root.
const (
	sharedHost  = "shared"
	privateHost = "private"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(envHelper); name != "" {
		helper(name)
	}
	testutil.QuickChildren()
	goleak.VerifyTestMain(m)
}

// checkUserNS checks only once for all tests, because under the race detector a check takes a second.
var checkUserNS = sync.OnceValue(testutil.UserNS.Check)

// onHost runs body as root of a simulated host: a new user and mount namespace whose mounts are shared or private. If root
// runs the tests, that root is an ordinary user outside.
func onHost(t *testing.T, kind string, body func(t *testing.T, s *Store)) {
	t.Helper()
	if os.Getenv(envHost) != "" {
		becomeHost(t, kind)
		// Use only /, so that directories of a real kubelet on this machine do not affect the tests.
		body(t, New(Options{Dir: filepath.Join(os.Getenv(envHost), "run", "mountns"), Paths: []string{"/"}}))
		return
	}
	t.Parallel()
	testutil.Require(t, testutil.Requirement{Name: testutil.UserNS.Name, Check: checkUserNS})
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = ordinaryUID, ordinaryUID
	}
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		assert.NilError(t, os.Chmod(d, 0o755))
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), envHost+"="+dir)
	cmd.Dir = "/" // root of the simulated host may not have access to the directory of the tests
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
		Credential:  &syscall.Credential{NoSetGroups: true},
	}
	out, err := cmd.CombinedOutput()
	assert.NilError(t, err, "%s", out)
	assert.Assert(t, !bytes.Contains(out, []byte("--- SKIP")), "%s", out)
}

// becomeHost sets the propagation of the namespace to that of the kind of host, and mounts a writable directory.
func becomeHost(t *testing.T, kind string) {
	t.Helper()
	flag := uintptr(unix.MS_SHARED)
	if kind == privateHost {
		flag = unix.MS_PRIVATE
	}
	dir := os.Getenv(envHost)
	assert.NilError(t, unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	assert.NilError(t, unix.Mount("none", dir, "tmpfs", 0, ""))
	assert.NilError(t, unix.Mount("none", "/", "", unix.MS_REC|flag, ""))
}

// run runs a program and returns its standard output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	assert.NilError(t, err, "%s %v: %s", name, args, stderr.String())
	return strings.TrimSpace(string(out))
}
