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
	// envHost tells a test that it runs again inside a made-up host, and of which kind.
	envHost = "ROOTLESSNODE_TEST_MOUNTNS_HOST"
	// envHelper makes the test binary play a program: see helper.
	envHelper = "ROOTLESSNODE_TEST_MOUNTNS_HELPER"
	// envDir is the store's directory for a helper.
	envDir = "ROOTLESSNODE_TEST_MOUNTNS_DIR"
	// nobody stands for an ordinary user when the tests run as root.
	nobody = 65534
)

// Kinds of made-up hosts: what the propagation of their root is.
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

// checkUserNS asks once for all tests: under the race detector the answer takes a second.
var checkUserNS = sync.OnceValue(testutil.UserNS.Check)

// onHost runs body as root of a made-up host: a fresh user and mount namespace whose mounts are shared or private. When
// root runs the tests, the made-up root is an ordinary user outside.
func onHost(t *testing.T, kind string, body func(t *testing.T, s *Store)) {
	t.Helper()
	if os.Getenv(envHost) != "" {
		becomeHost(t, kind)
		// The directories of a real kubelet on the machine that runs the tests are none of their business.
		body(t, New(Options{Dir: filepath.Join(os.Getenv(envHost), "run", "mountns"), Paths: []string{"/"}}))
		return
	}
	t.Parallel()
	testutil.Require(t, testutil.Requirement{Name: testutil.UserNS.Name, Check: checkUserNS})
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = nobody, nobody
	}
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		assert.NilError(t, os.Chmod(d, 0o755))
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), envHost+"="+dir)
	cmd.Dir = "/" // the made-up root may not enter where the tests lie
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

// becomeHost gives the namespace the propagation of a host's, and a directory to write in.
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

// run starts a program and returns what it says on standard output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	assert.NilError(t, err, "%s %v: %s", name, args, stderr.String())
	return strings.TrimSpace(string(out))
}
