package nodeexec

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/terminal"
)

// user is a client that runs on a terminal.
type user struct {
	*lineReader
	far *os.File // the client's side of the terminal
	cmd *exec.Cmd
}

func atTerminal(t *testing.T, s service, argv ...string) user {
	t.Helper()
	near, far, err := terminal.Open()
	assert.NilError(t, err)
	t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
	u := user{lineReader: &lineReader{t: t, f: near}, far: far}
	u.resize(31, 91)
	u.cmd = s.client(true, argv...)
	u.cmd.Stdin, u.cmd.Stdout, u.cmd.Stderr = far, far, far
	u.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return u
}

func (u user) start() {
	u.t.Helper()
	assert.NilError(u.t, u.cmd.Start())
	u.t.Cleanup(func() { _ = u.cmd.Process.Kill() })
}

func (u user) resize(rows, cols uint16) {
	u.t.Helper()
	rc, err := u.f.SyscallConn()
	assert.NilError(u.t, err)
	assert.NilError(u.t, rc.Control(func(fd uintptr) {
		assert.Check(u.t, unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}))
	}))
}

func (u user) types(s string) {
	u.t.Helper()
	_, err := u.f.WriteString(s)
	assert.NilError(u.t, err)
}

func TestTerminalSizeAndExitCode(t *testing.T) {
	t.Parallel()
	// The shell waits, because a shell that reads can miss a signal that arrives before.
	u := atTerminal(t, serve(t, Options{}), sh(`tty -s && stty size; trap 'stty size; exit 5' WINCH; echo up; while :; do sleep 1000 & wait; done`)...)
	before := termios(t, u.far)
	u.start()
	u.until("31 91\r\n")
	u.until("up\r\n")
	u.resize(40, 120)
	u.until("40 120\r\n")
	assert.Check(t, is.Equal(exitCode(u.cmd.Wait()), 5))
	assert.Check(t, is.DeepEqual(termios(t, u.far), before))
}

func TestTerminalIsTheControllingOne(t *testing.T) {
	t.Parallel()
	u := atTerminal(t, serve(t, Options{}), sh(`echo hello >/dev/tty; read line; echo "got $line"; exit 0`)...)
	u.start()
	u.until("hello\r\n")
	u.types("word\n")
	u.until("got word\r\n")
	assert.NilError(t, u.cmd.Wait())
}

func TestTerminalKeys(t *testing.T) {
	t.Parallel()
	u := atTerminal(t, serve(t, Options{}), sh(`trap 'echo interrupted' INT; echo started; cat; cat; exit 6`)...)
	u.start()
	u.until("started\r\n")
	u.types("up\n")
	u.until("up\r\nup\r\n")
	u.types("\x03")
	u.until("interrupted\r\n")
	u.types("line\n\x04")
	u.until("line\r\nline\r\n")
	assert.Check(t, is.Equal(exitCode(u.cmd.Wait()), 6))
}

func TestJobControl(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("needs bash")
	}
	u := atTerminal(t, serve(t, Options{}), "env", "PS1=ready> ", "bash", "--norc", "--noediting", "-i")
	u.start()
	u.until("ready> ")
	// The output of cat shows that bash has given it the terminal.
	u.types("cat\none\n")
	u.until("one\r\none\r\n")
	u.types("\x1a")
	u.until("Stopped")
	u.until("ready> ")
	u.types("fg\n")
	u.until("cat\r\n")
	u.types("two\n")
	u.until("two\r\ntwo\r\n")
	u.types("\x03")
	u.until("ready> ")
	u.types("exit 9\n")
	assert.Check(t, is.Equal(exitCode(u.cmd.Wait()), 9))
}

func TestTerminalRestoredAfterSignal(t *testing.T) {
	t.Parallel()
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGHUP} {
		r, w := pipe(t)
		u := atTerminal(t, serve(t, Options{}), sh(`trap '' TERM; echo up; sleep 1000`)...)
		before := termios(t, u.far)
		u.cmd.Stderr = w
		u.start()
		assert.NilError(t, w.Close())
		u.until("up\r\n")
		assert.Check(t, termios(t, u.far) != before, "the terminal is not raw while the program runs")
		assert.NilError(t, u.cmd.Process.Signal(sig))
		assert.Check(t, is.Equal(exitCode(u.cmd.Wait()), ExitSignalBase+int(sig)))
		assert.Check(t, is.DeepEqual(termios(t, u.far), before))
		r.gone()
	}
}

func TestTerminalClosedProgramGone(t *testing.T) {
	t.Parallel()
	r, w := pipe(t)
	s := serve(t, Options{Env: []string{"PATH=" + os.Getenv("PATH")}})
	// The test detects the end of the program by a named pipe, because its three descriptors are the terminal.
	fifo := t.TempDir() + "/alive"
	assert.NilError(t, unix.Mkfifo(fifo, 0o600))
	assert.NilError(t, w.Close())
	in, err := os.OpenFile(fifo, os.O_RDWR|unix.O_NONBLOCK, 0)
	assert.NilError(t, err)
	r.f = in
	u := atTerminal(t, s, sh(`exec 3>`+fifo+`; echo up >&3; sleep 1000`)...)
	u.start()
	r.until("up\n")
	alive, err := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
	assert.NilError(t, err)
	defer alive.Close()
	assert.NilError(t, in.Close())
	assert.NilError(t, u.cmd.Process.Kill())
	_ = u.cmd.Wait()
	r.f = alive
	r.gone()
}

func TestLargeTerminalOutput(t *testing.T) {
	t.Parallel()
	u := atTerminal(t, serve(t, Options{}), sh(`i=0; while [ $i -lt 20000 ]; do echo "line $i of a long output"; i=$((i+1)); done`)...)
	u.start()
	u.until("line 19999 of a long output\r\n")
	assert.NilError(t, u.cmd.Wait())
}
