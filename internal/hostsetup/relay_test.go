package hostsetup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/terminal"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

// patience is how long a test waits for an expected event.
const patience = 30 * time.Second

// rootShell is a process of root at a terminal that enters an account and runs a script there.
type rootShell struct {
	t         *testing.T
	near, far *os.File
	cmd       *exec.Cmd
	read      strings.Builder
}

func atTerminal(t *testing.T, user, script string) *rootShell {
	t.Helper()
	near, far, err := terminal.Open()
	assert.NilError(t, err)
	t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
	s := &rootShell{t: t, near: near, far: far, cmd: exec.Command("/proc/self/exe")}
	s.resize(31, 91)
	s.cmd.Env = []string{envEnter + "=" + user, envScript + "=" + script, testutil.QuickExit}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = far, far, far
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return s
}

// redirected returns a shell whose terminal is only its controlling terminal. Its streams are pipes.
func redirected(t *testing.T, user, script string) (s *rootShell, stdin io.WriteCloser, stdout io.ReadCloser) {
	t.Helper()
	s = atTerminal(t, user, script)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = nil, nil, nil
	s.cmd.ExtraFiles = []*os.File{s.far}
	s.cmd.SysProcAttr.Ctty = 3
	stdin, err := s.cmd.StdinPipe()
	assert.NilError(t, err)
	stdout, err = s.cmd.StdoutPipe()
	assert.NilError(t, err)
	s.cmd.Stderr = s.cmd.Stdout
	return s, stdin, stdout
}

func (s *rootShell) start() {
	s.t.Helper()
	assert.NilError(s.t, s.cmd.Start())
	s.t.Cleanup(func() { _ = s.cmd.Process.Kill() })
}

func (s *rootShell) resize(rows, cols uint16) {
	s.t.Helper()
	rc, err := s.near.SyscallConn()
	assert.NilError(s.t, err)
	assert.NilError(s.t, rc.Control(func(fd uintptr) {
		assert.Check(s.t, unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}))
	}))
}

func (s *rootShell) types(text string) {
	s.t.Helper()
	_, err := s.near.WriteString(text)
	assert.NilError(s.t, err)
}

// until reads until want appears and returns the text before it.
func (s *rootShell) until(want string) string {
	s.t.Helper()
	assert.NilError(s.t, s.near.SetReadDeadline(time.Now().Add(patience)))
	b := make([]byte, 4096)
	for {
		if before, after, found := strings.Cut(s.read.String(), want); found {
			s.read.Reset()
			s.read.WriteString(after)
			return before
		}
		n, err := s.near.Read(b)
		s.read.Write(b[:n])
		if err != nil && n == 0 {
			s.t.Fatalf("%q was not printed (%v), only %q", want, err, s.read.String())
		}
	}
}

// wait waits for the end of the process and returns its exit code.
func (s *rootShell) wait() int {
	s.t.Helper()
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *rootShell) termios() unix.Termios {
	s.t.Helper()
	rc, err := s.far.SyscallConn()
	assert.NilError(s.t, err)
	var tio *unix.Termios
	assert.NilError(s.t, rc.Control(func(fd uintptr) { tio, err = unix.IoctlGetTermios(int(fd), unix.TCGETS) }))
	assert.NilError(s.t, err)
	return *tio
}

// name returns the name of the terminal, such as /dev/pts/3.
func (s *rootShell) name() string {
	s.t.Helper()
	rc, err := s.near.SyscallConn()
	assert.NilError(s.t, err)
	number := 0
	assert.NilError(s.t, rc.Control(func(fd uintptr) { number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN) }))
	assert.NilError(s.t, err)
	return fmt.Sprintf("/dev/pts/%d", number)
}

// checkTerminals checks that an entered account gets no terminal of root, and that its own terminal works like root's.
func checkTerminals(t *testing.T, user string) {
	t.Run("a terminal of its own", func(t *testing.T) {
		// A shell in read can miss a signal that arrives just before. A shell in wait cannot.
		s := atTerminal(t, user, `tty; echo >/dev/tty by name; stty size; read root; ls -l /proc/self/fd | grep -c -- "-> $root\$"
			trap 'stty size; exit 5' WINCH; echo up; while :; do sleep 1000 & wait; done`)
		before := s.termios()
		s.start()
		own := strings.TrimSpace(s.until("by name\r\n"))
		assert.Check(t, strings.HasPrefix(own, "/dev/pts/") && own != s.name(), "%s is root's terminal", own)
		s.until("31 91\r\n")
		s.types(s.name() + "\n")
		s.until("\r\n0\r\n")
		s.until("up\r\n")
		assert.Check(t, s.termios() != before, "root's terminal is in raw mode")
		s.resize(40, 120)
		s.until("40 120\r\n")
		assert.Check(t, is.Equal(s.wait(), 5))
		assert.Check(t, is.DeepEqual(s.termios(), before))
	})
	t.Run("keys", func(t *testing.T) {
		s := atTerminal(t, user, `trap 'echo interrupted' INT; echo started; cat; cat; exit 6`)
		s.start()
		s.until("started\r\n")
		s.types("up\n")
		s.until("up\r\nup\r\n")
		s.types("\x03")
		s.until("interrupted\r\n")
		s.types("line\n\x04")
		s.until("line\r\nline\r\n")
		assert.Check(t, is.Equal(s.wait(), 6))
	})
	t.Run("restored after a signal", func(t *testing.T) {
		for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGINT} {
			s := atTerminal(t, user, `echo up; exec sleep 1000`)
			before := s.termios()
			s.start()
			s.until("up\r\n")
			assert.NilError(t, s.cmd.Process.Signal(sig))
			assert.Check(t, is.Equal(s.wait(), exitSignalBase+int(sig)))
			assert.Check(t, is.DeepEqual(s.termios(), before))
		}
	})
	t.Run("only output is a terminal", func(t *testing.T) {
		s := atTerminal(t, user, `tty -s <&1; echo $?; tty -s <&2; echo $? >&2; (: </dev/tty) 2>/dev/null || echo none; cat; exit 7`)
		s.cmd.Stdin, s.cmd.SysProcAttr.Ctty = strings.NewReader("from a pipe\n"), 1
		s.start()
		s.until("1\r\n1\r\nnone\r\nfrom a pipe\r\n")
		assert.Check(t, is.Equal(s.wait(), 7))
	})
	t.Run("only input is a terminal", func(t *testing.T) {
		s := atTerminal(t, user, `tty -s; echo $?; cat; (: </dev/tty) 2>/dev/null || echo none`)
		read, write, err := os.Pipe()
		assert.NilError(t, err)
		s.cmd.Stdout = write
		before := s.termios()
		s.start()
		assert.NilError(t, write.Close())
		s.types("typed\n")
		s.until("typed\r\n") // the echo of root's terminal, which is not in raw mode
		s.types("\x04")
		out, err := io.ReadAll(read)
		assert.NilError(t, err)
		assert.Check(t, is.Equal(string(out), "1\ntyped\nnone\n"))
		assert.Check(t, is.Equal(s.wait(), 0))
		assert.Check(t, is.DeepEqual(s.termios(), before))
	})
	t.Run("no stream is a terminal", func(t *testing.T) {
		s, stdin, stdout := redirected(t, user, `(: </dev/tty) 2>/dev/null || echo none; cat; ls /proc/self/fd | tail -n 1; exit 8`)
		s.start()
		_, err := io.WriteString(stdin, "in\n")
		assert.NilError(t, errors.Join(err, stdin.Close()))
		out, err := io.ReadAll(stdout)
		assert.NilError(t, err)
		assert.Check(t, is.Equal(string(out), "none\nin\n3\n")) // 3: the directory itself
		assert.Check(t, is.Equal(s.wait(), 8))
	})
	t.Run("signals without a terminal", func(t *testing.T) {
		for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1} {
			s, _, stdout := redirected(t, user, fmt.Sprintf(`trap 'echo got; exit 40' %d; echo up; while :; do sleep 1000 >/dev/null 2>&1 & wait; done`, sig))
			s.start()
			line := make([]byte, len("up\n"))
			_, err := io.ReadFull(stdout, line)
			assert.NilError(t, err)
			assert.NilError(t, s.cmd.Process.Signal(sig))
			out, err := io.ReadAll(stdout)
			assert.NilError(t, err)
			assert.Check(t, is.Equal(string(out), "got\n"))
			assert.Check(t, is.Equal(s.wait(), 40))
		}
	})
	t.Run("a killed relay", func(t *testing.T) {
		s, _, stdout := redirected(t, user, `echo up; exec sleep 1000`)
		s.start()
		line := make([]byte, len("up\n"))
		_, err := io.ReadFull(stdout, line)
		assert.NilError(t, err)
		assert.NilError(t, s.cmd.Process.Kill())
		_, err = io.ReadAll(stdout) // until all processes of the command have ended
		assert.NilError(t, err)
		assert.Check(t, is.Equal(s.wait(), -1))
	})
}

// checkInherited checks that an entered account cannot access keys, timers and descriptors of root.
func checkInherited(t *testing.T, user string) {
	t.Run("keyring", func(t *testing.T) {
		runtime.LockOSThread() // never unlocked: the keyring ends with the thread
		const name = "rootlessnode-test-secret"
		_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
		if err == nil {
			_, err = unix.AddKey("user", name, []byte("secret"), unix.KEY_SPEC_SESSION_KEYRING)
		}
		testutil.Require(t, testutil.Requirement{Name: "keyrings", Check: func() error { return err }})
		// /proc/keys lists the keys that the reader may see.
		keys, err := os.ReadFile("/proc/keys")
		assert.NilError(t, err)
		assert.Assert(t, strings.Contains(string(keys), name))
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{envEnter + "=" + user, envScript + "=cat /proc/keys", testutil.QuickExit}
		out, err := cmd.CombinedOutput()
		assert.NilError(t, err, string(out))
		assert.Check(t, strings.Contains(string(out), "_ses") && !strings.Contains(string(out), name), string(out))
	})
	t.Run("timers", func(t *testing.T) {
		testutil.Require(t, testutil.Requirement{Name: "timers", Check: func() error { _, err := os.Stat("/proc/self/timers"); return err }})
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{envEnter + "=" + user, envScript + "=exec cat /proc/self/timers", testutil.QuickExit}
		out, err := cmd.CombinedOutput()
		assert.NilError(t, err, string(out))
		assert.Equal(t, string(out), "", "the program would be killed")
	})
	t.Run("descriptors", func(t *testing.T) {
		secret, err := os.Open("/etc/shadow")
		assert.NilError(t, err)
		defer secret.Close()
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{envEnter + "=" + user, envScript + "=ls /proc/self/fd", testutil.QuickExit}
		cmd.ExtraFiles = []*os.File{secret, secret, secret, secret}
		out, err := cmd.CombinedOutput()
		assert.NilError(t, err, string(out))
		assert.DeepEqual(t, strings.Fields(string(out)), []string{"0", "1", "2", "3"}) // 3: the directory itself
	})
}

// checkFrozen checks that the account cannot block a process of root by freezing its cgroup.
func checkFrozen(t *testing.T, user string, uid int) {
	tree, err := cgroupv2.DetectHost(cgroupv2.Options{})
	assert.NilError(t, err)
	leaf := fmt.Sprintf("%s/rootlessnode/user-%d/enter", tree.Mount, uid)
	freeze := func(on string) { assert.NilError(t, os.WriteFile(leaf+"/cgroup.freeze", []byte(on), 0o644)) }
	freeze("1")
	defer freeze("0")
	out, err := enter(t, user)
	assert.Check(t, err != nil)
	assert.Check(t, is.Equal(out, "enter: enter prepared cgroup: the cgroup "+leaf+" is frozen\n"))
}
