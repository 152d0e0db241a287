// Package testutil has helpers for the tests of several packages, above all requirements on the machine. Only tests may import it.
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

// EnvMandatory names an environment variable that lists, separated by commas, the requirements that the machine is expected to meet. A
// test fails instead of being skipped if one of these is not met, so that continuous integration cannot skip tests unnoticed.
const EnvMandatory = "ROOTLESSNODE_TEST_PROMISES"

// QuickExit is a setting of the environment with which a program with the race detector exits without a pause of one second.
const QuickExit = "GORACE=atexit_sleep_ms=0"

// QuickChildren sets QuickExit in the environment that the test's children inherit. Call it in TestMain.
func QuickChildren() {
	key, value, _ := strings.Cut(QuickExit, "=")
	if err := os.Setenv(key, value); err != nil {
		panic(err) // the name is a constant
	}
}

// HearHangup reverts the effect of nohup(1) for the test's children: an ignored signal stays ignored over execve(2), whereas a caught
// signal is reset. Call it in TestMain.
func HearHangup() {
	if signal.Ignored(unix.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	}
}

// Requirement is a property of the machine that a test needs. Name is its name in EnvMandatory.
type Requirement struct {
	Name  string
	Check func() error
}

// Require skips the test, with the reason, unless the machine meets every requirement. It fails the test if EnvMandatory lists the
// requirement that is not met.
func Require(t testing.TB, reqs ...Requirement) {
	t.Helper()
	for _, r := range reqs {
		err := r.Check()
		if err == nil {
			continue
		}
		if Mandatory(r.Name) {
			t.Fatalf("requirement %q is listed in %s but is not met: %v", r.Name, EnvMandatory, err)
		}
		t.Skipf("requirement %q: %v", r.Name, err)
	}
}

// Mandatory reports whether EnvMandatory lists name.
func Mandatory(name string) bool {
	for _, p := range strings.Split(os.Getenv(EnvMandatory), ",") {
		if strings.TrimSpace(p) == name {
			return true
		}
	}
	return false
}

// Root requires that the test runs as uid 0.
var Root = Requirement{"root", func() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("runs as uid %d, needs root", os.Geteuid())
	}
	return nil
}}

// OrdinaryUser requires that the test does not run as uid 0.
var OrdinaryUser = Requirement{"user", func() error {
	if os.Geteuid() == 0 {
		return errors.New("runs as root, needs an ordinary user")
	}
	return nil
}}

// UserNS requires that a process can create a user and mount namespace with its own id mapped to 0.
var UserNS = Requirement{"userns", func() error {
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), QuickExit)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("create a user namespace: %w: %s", err, out)
	}
	return nil
}}

// IPv6 requires that a process can listen on the IPv6 loopback address.
var IPv6 = Requirement{"ipv6", func() error {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return err
	}
	return l.Close()
}}

// Cgroup2 requires that a cgroup2 hierarchy is mounted.
var Cgroup2 = Requirement{"cgroup2", func() error {
	_, err := Cgroup2Mount()
	return err
}}

// Subids requires that the account has subordinate uids and gids, and that the programs that map them are installed.
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

// Program requires that a program is found in PATH.
func Program(name string) Requirement {
	return Requirement{"program:" + name, func() error {
		_, err := exec.LookPath(name)
		return err
	}}
}

// Cgroup2Mount returns the mount point of the cgroup2 hierarchy on a unified or hybrid host.
func Cgroup2Mount() (string, error) {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir, nil
		}
	}
	return "", errors.New("no cgroup2 hierarchy is mounted")
}

// DelegatedCgroup requires that the process is in a cgroup2 directory that it can write.
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
	return errors.New("the process is not in a cgroup2 hierarchy")
}}

// RootOnlyDir creates a directory that only root can change or replace, and removes it when the test ends. The test requires Root. The
// directory for temporary files is not suitable, because all users can write to it.
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
