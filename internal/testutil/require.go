// Package testutil is what tests of several packages share: requirements on the machine, and a check that nothing of
// a test was left behind. It is imported by tests alone.
package testutil

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// EnvPromises lists, separated by commas, the requirements that the machine promises to meet. A test that has to be
// skipped for a promised requirement fails instead, so that continuous integration cannot lose tests in silence.
const EnvPromises = "ROOTLESSNODE_TEST_PROMISES"

// QuickExit is the environment variable that keeps a program with the race detector from pausing for a second when it
// ends.
const QuickExit = "GORACE=atexit_sleep_ms=0"

// QuickChildren puts QuickExit into the environment that the test's children inherit. It is for TestMain.
func QuickChildren() {
	key, value, _ := strings.Cut(QuickExit, "=")
	if err := os.Setenv(key, value); err != nil {
		panic(err) // the name is a constant
	}
}

// HearHangup undoes for the test's children what nohup(1) did for the test: a signal that is ignored stays so over execve(2),
// one that is caught does not. It is for TestMain.
func HearHangup() {
	if signal.Ignored(unix.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	}
}

// Requirement is something a test needs of the machine. Name is what EnvPromises lists.
type Requirement struct {
	Name  string
	Check func() error
}

// Require skips the test, with the reason, unless the machine meets every requirement; it fails it where the unmet
// requirement was promised.
func Require(t testing.TB, reqs ...Requirement) {
	t.Helper()
	for _, r := range reqs {
		err := r.Check()
		if err == nil {
			continue
		}
		if Promised(r.Name) {
			t.Fatalf("requirement %q was promised by %s and is not met: %v", r.Name, EnvPromises, err)
		}
		t.Skipf("requirement %q: %v", r.Name, err)
	}
}

// Promised tells whether EnvPromises lists name.
func Promised(name string) bool {
	for _, p := range strings.Split(os.Getenv(EnvPromises), ",") {
		if strings.TrimSpace(p) == name {
			return true
		}
	}
	return false
}

// Root: the test runs as uid 0.
var Root = Requirement{"root", func() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("runs as uid %d, needs root", os.Geteuid())
	}
	return nil
}}

// OrdinaryUser: the test does not run as uid 0.
var OrdinaryUser = Requirement{"user", func() error {
	if os.Geteuid() == 0 {
		return errors.New("runs as root, needs an ordinary user")
	}
	return nil
}}

// UserNS: a process may make a user and mount namespace with its own id mapped to 0.
var UserNS = Requirement{"userns", func() error {
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), QuickExit)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make a user namespace: %w: %s", err, out)
	}
	return nil
}}

// IPv6: something can listen on the IPv6 loopback.
var IPv6 = Requirement{"ipv6", func() error {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return err
	}
	return l.Close()
}}

// Cgroup2: a cgroup2 tree is mounted somewhere.
var Cgroup2 = Requirement{"cgroup2", func() error {
	_, err := Cgroup2Mount()
	return err
}}

// Subids: the account has subordinate uids and gids and the programs that map them.
var Subids = Requirement{"subids", func() error {
	for _, p := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(p); err != nil {
			return err
		}
	}
	for _, f := range []string{"/etc/subuid", "/etc/subgid"} {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if !hasRow(string(b), os.Getenv("USER"), os.Geteuid()) {
			return fmt.Errorf("%s has no row for uid %d", f, os.Geteuid())
		}
	}
	return nil
}}

func hasRow(text, user string, uid int) bool {
	for _, line := range strings.Split(text, "\n") {
		owner, _, _ := strings.Cut(line, ":")
		if owner != "" && (owner == user || owner == fmt.Sprint(uid)) {
			return true
		}
	}
	return false
}

// Program: a program is found on PATH.
func Program(name string) Requirement {
	return Requirement{"program:" + name, func() error {
		_, err := exec.LookPath(name)
		return err
	}}
}

// Cgroup2Mount returns the mount point of the cgroup2 tree: that of a unified host, or that of a hybrid one.
func Cgroup2Mount() (string, error) {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir, nil
		}
	}
	return "", errors.New("no cgroup2 tree is mounted")
}

// DelegatedCgroup: the process sits in a cgroup2 directory that it may write.
var DelegatedCgroup = Requirement{"delegated-cgroup", func() error {
	mount, err := Cgroup2Mount()
	if err != nil {
		return err
	}
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	for _, line := range strings.Split(string(b), "\n") {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return unix.Access(filepath.Join(mount, path), unix.W_OK)
		}
	}
	return errors.New("the process is in no cgroup2")
}}

// RootOnlyDir makes a directory that only root can change or replace, for tests that require Root. It is removed with the
// test. The directory for temporary files is open to everyone.
func RootOnlyDir(t testing.TB) string {
	t.Helper()
	Require(t, Root)
	dir, err := os.MkdirTemp("/run", "rootlessnode-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
