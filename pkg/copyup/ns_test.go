package copyup

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

const (
	// envLevel is the number of namespaces around a test that runs itself again inside them.
	envLevel = "ROOTLESSNODE_TEST_COPYUP_LEVEL"
	// envHost is the directory with the host's trees for the test.
	envHost = "ROOTLESSNODE_TEST_COPYUP_HOST"
	// ordinaryUID is the ordinary user for the tests when they run as root.
	ordinaryUID = 65534
)

// checkUserNS checks only once for all tests, because under the race detector a check takes a second.
var checkUserNS = sync.OnceValue(testutil.UserNS.Check)

func level() string { return os.Getenv(envLevel) }

// inNamespace returns a command that runs the test of t again, as root of a new user and mount namespace. That root is uid
// outside.
func inNamespace(t *testing.T, uid, gid int, level string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), envLevel+"="+level, testutil.QuickExit)
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
		Pdeathsig:   syscall.SIGKILL,
	}
	return cmd
}

// inside runs body in a new user and mount namespace: as the user that runs the tests and, if that is root, also as an
// ordinary user. Before that, prepare creates the host's trees, and afterwards check checks them; both run outside and get
// the uid of the run.
func inside(t *testing.T, prepare, check func(t *testing.T, host string, uid int), body func(t *testing.T, host string)) {
	t.Helper()
	if level() != "" {
		body(t, os.Getenv(envHost))
		return
	}
	asEachUser(t, func(uid int, host string, run func(level string)) {
		if prepare != nil {
			prepare(t, host, uid)
		}
		run("1")
		if check != nil {
			check(t, host, uid)
		}
	})
}

// asEachUser calls f for the user that runs the tests and, if that is root, also for an ordinary user. It passes an empty
// directory, and a function that runs the test again in a new user and mount namespace.
func asEachUser(t *testing.T, f func(uid int, host string, run func(level string))) {
	t.Helper()
	t.Parallel()
	testutil.Require(t, testutil.Requirement{Name: testutil.UserNS.Name, Check: checkUserNS})
	uids := map[string]int{"user": os.Getuid()}
	if os.Getuid() == 0 {
		uids = map[string]int{"root": 0, "user": ordinaryUID}
	}
	for name, uid := range uids {
		gid := uid
		if uid == os.Getuid() {
			gid = os.Getgid()
		}
		host := openTempDir(t)
		f(uid, host, func(level string) {
			out, err := inNamespace(t, uid, gid, level, envHost+"="+host).CombinedOutput()
			assert.NilError(t, err, "as %s, %s:\n%s", name, level, out)
			assert.Assert(t, !bytes.Contains(out, []byte("--- SKIP")), "as %s:\n%s", name, out)
		})
	}
}

// openTempDir returns a temporary directory that other users can search.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		assert.NilError(t, os.Chmod(d, 0o755))
	}
	return dir
}

// makeTree creates files below dir from lines "dir/ [mode]", "file" and "link -> text", and their parents.
func makeTree(t *testing.T, dir string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		name, link, isLink := strings.Cut(line, " -> ")
		name, mode, hasMode := strings.Cut(name, " ")
		full := filepath.Join(dir, name)
		assert.NilError(t, os.MkdirAll(filepath.Dir(full), 0o755))
		switch {
		case isLink:
			assert.NilError(t, os.Symlink(link, full))
		case strings.HasSuffix(name, "/"):
			assert.NilError(t, os.MkdirAll(full, 0o755))
		default:
			assert.NilError(t, os.WriteFile(full, []byte(name+"\n"), 0o644))
		}
		if hasMode {
			var bits uint32
			_, err := fmt.Sscanf(mode, "%o", &bits)
			assert.NilError(t, err)
			assert.NilError(t, syscall.Chmod(full, bits))
		}
	}
}

// snapshot lists everything below dir with mode, owner, size, modification time and link text.
func snapshot(t *testing.T, dir string, leaveOut ...string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, out := range leaveOut {
			if name == filepath.Join(dir, out) {
				return fs.SkipDir
			}
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		link, _ := os.Readlink(name)
		st := info.Sys().(*syscall.Stat_t)
		fmt.Fprintln(&b, name, info.Mode(), st.Uid, st.Gid, info.Size(), info.ModTime().UnixNano(), link)
		return nil
	})
	assert.NilError(t, err)
	return b.String()
}

func mount(t *testing.T, source, target, fsType string, flags uintptr, data string) {
	t.Helper()
	assert.NilError(t, unix.Mount(source, target, fsType, flags, data), "mount %s on %s", source, target)
}

// takeOver binds the trees below host to /etc, /run, /var and /opt of this namespace, as RootlessKit's child finds them.
func takeOver(t *testing.T, host string) {
	t.Helper()
	mount(t, "none", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
	for _, dir := range []string{"/etc", "/run", "/var", "/opt"} {
		mount(t, host+dir, dir, "", unix.MS_BIND|unix.MS_REC, "")
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	assert.NilError(t, err)
	return string(b)
}

// writable checks that files can be created in dir.
func writable(t *testing.T, dir string) {
	t.Helper()
	name := filepath.Join(dir, "written")
	assert.NilError(t, os.WriteFile(name, []byte("x"), 0o600), dir)
	assert.NilError(t, os.Remove(name))
}
