package mountns

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// helper runs the test binary as another program. It does not return.
func helper(name string) {
	_ = os.Unsetenv(envHelper)
	s := New(Options{Dir: os.Getenv(envDir), Paths: []string{"/"}})
	switch name {
	case "create": // waits for the end of its input, so that several begin together
		_, _ = io.Copy(io.Discard, os.Stdin)
		_, err := s.Create(Spec{Name: DefaultName})
		end(err)
	case "exec":
		o := ExecOptions{Name: os.Getenv("NS"), Pin: os.Getenv("PIN"), Argv0: os.Getenv("ARGV0"), IgnorePipe: os.Getenv("PIPE") != "", Argv: os.Args[1:]}
		end(s.Exec(o))
	case "status":
		_, err := s.Status(DefaultName)
		end(err)
	case "create-here", "delete-here":
		_, err := s.Create(Spec{Name: "other"})
		if name == "delete-here" {
			err = s.Delete(DefaultName, false)
		}
		end(err)
	case "notify":
		c, err := net.Dial("unix", os.Getenv("NOTIFY_SOCKET"))
		if err == nil {
			_, err = fmt.Fprintf(c, "READY=1 %d\n", os.Getpid())
		}
		end(err)
	case "churn":
		end(churn(os.Args[1], os.Getenv("TIMES")))
	case "live": // prints "alive" and runs until the end of its input
		fmt.Println("alive")
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	os.Exit(0)
}

// churn mounts and unmounts the given number of times, and prints that number.
func churn(dir, times string) error {
	n, err := strconv.Atoi(times)
	for i := 0; err == nil && i < n; i++ {
		if err = unix.Mount("none", dir, "tmpfs", 0, "size=4k"); err == nil {
			err = unix.Unmount(dir, 0)
		}
	}
	fmt.Println(n)
	return err
}

func itoa(n int) string { return strconv.Itoa(n) }

func asStart(err error, target **StartError) bool { return errors.As(err, target) }

func end(err error) {
	code := 0
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = errdefs.ExitCode(err)
	}
	os.Exit(code)
}

// helperCommand returns a command that runs a helper.
func helperCommand(t *testing.T, s *Store, name string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(append(os.Environ(), envHelper+"="+name, envDir+"="+s.dir), env...)
	return cmd
}

// execIn runs a program in a namespace with Exec, and returns its output.
func execIn(t *testing.T, s *Store, name string, argv ...string) string {
	t.Helper()
	out, err := helperCommand(t, s, "exec", []string{"NS=" + name}, argv...).CombinedOutput()
	assert.NilError(t, err, "%v: %s", argv, out)
	return strings.TrimSpace(string(out))
}

// startLive starts a process in a namespace that runs until the end of the test or until stop. as is its program name.
func startLive(t *testing.T, s *Store, ns, as string) (pid int, stop func()) {
	t.Helper()
	program := filepath.Join(os.Getenv(envHost), as)
	assert.NilError(t, os.Symlink(ownCopy(t), program))
	// The process ends with its input and not with the test's context, which is cancelled before the clean-up.
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), envHelper+"=live")
	if ns != "" {
		cmd = exec.Command("/proc/self/exe", "/usr/bin/env", envHelper+"=live", program)
		cmd.Env = append(os.Environ(), envHelper+"=exec", envDir+"="+s.dir, "NS="+ns)
	}
	return begin(t, cmd)
}

// begin starts a live helper.
func begin(t *testing.T, cmd *exec.Cmd) (pid int, stop func()) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	assert.NilError(t, err)
	stdout, err := cmd.StdoutPipe()
	assert.NilError(t, err)
	assert.NilError(t, cmd.Start())
	said := make([]byte, len("alive"))
	_, err = io.ReadFull(stdout, said)
	assert.NilError(t, err)
	ended := false
	stop = func() {
		if !ended {
			ended = true
			_ = stdin.Close()
			assert.Check(t, cmd.Wait())
		}
	}
	t.Cleanup(stop)
	return cmd.Process.Pid, stop
}

// ownCopy returns a copy of the test binary that root of the simulated host can execute: the original may be in a directory
// without access.
func ownCopy(t *testing.T) string {
	t.Helper()
	path := filepath.Join(os.Getenv(envHost), "helper")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	b, err := os.ReadFile("/proc/self/exe")
	assert.NilError(t, err)
	assert.NilError(t, os.WriteFile(path, b, 0o755))
	return path
}

// tmpfs mounts a tmpfs on a new directory of the simulated host.
func tmpfs(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(os.Getenv(envHost), name)
	assert.NilError(t, os.Mkdir(path, 0o755))
	assert.NilError(t, unix.Mount("none", path, "tmpfs", 0, ""))
	return path
}

func hostSees(t *testing.T, path string) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mounts")
	assert.NilError(t, err)
	return strings.Contains(string(b), " "+path+" ")
}

func equal[T comparable](t *testing.T, got, want T, what string) {
	t.Helper()
	assert.Check(t, is.Equal(got, want), what)
}
