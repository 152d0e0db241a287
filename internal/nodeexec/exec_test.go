package nodeexec

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{})
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		assert.NilError(t, os.WriteFile(p, []byte(text), mode))
		return p
	}
	for _, tc := range []struct {
		name string
		argv []string
		code int
		text string // of the error; empty if there is no error
	}{
		{"success", []string{"true"}, 0, ""},
		{"own code", sh("exit 7"), 7, ""},
		{"killed", sh("kill -9 $$"), 137, ""},
		{"terminated", sh("kill -TERM $$"), 143, ""},
		{"not in PATH", []string{"no-such-program"}, 127, "no-such-program: not found in the node's PATH"},
		{"no such file", []string{"/no/such"}, 127, "/no/such: not found inside the node"},
		{"a directory", []string{dir}, 126, dir + ": is a directory"},
		{"not executable", []string{write("plain", "x", 0o600)}, 126, "plain: not executable"},
		{"no interpreter", []string{write("script", "#!/no/interpreter\n", 0o700)}, 126, "the interpreter of the program does not exist"},
		{"not a program", []string{write("junk", "\x01\x02junk", 0o700)}, 126, "not an executable program for this machine"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, code, err := s.run(t, Request{Argv: tc.argv})
			assert.Check(t, is.Equal(code, tc.code))
			if tc.text == "" {
				assert.NilError(t, err)
				return
			}
			var se *StartError
			assert.Check(t, errors.As(err, &se))
			assert.ErrorContains(t, err, tc.text)
		})
	}
}

func TestRequestFaults(t *testing.T) {
	t.Parallel()
	_, err := Run(t.Context(), "/no/such/socket", Request{Argv: []string{"true"}})
	assert.Check(t, is.ErrorIs(err, errdefs.ErrNotRunning))
	s := serve(t, Options{})
	_, err = Run(t.Context(), s.socket, Request{})
	assert.Check(t, is.ErrorIs(err, errdefs.ErrConfig))
	_, _, err = s.run(t, Request{Argv: []string{"true"}, Dir: "/no/such"})
	assert.Error(t, err, "enter directory /no/such inside the node: no such file or directory")
}

func TestEnvironmentAndDirectory(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := serve(t, Options{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "KEPT=node", "LAID=node"}})
	out, _, err := s.run(t, Request{Argv: sh("echo $KEPT $LAID $MORE; pwd"), Env: []string{"LAID=caller", "MORE=1"}, Dir: "/usr"})
	assert.NilError(t, err)
	assert.Equal(t, out, "node caller 1\n/usr\n")

	cwd, err := os.Getwd()
	assert.NilError(t, err)
	out, _, err = s.run(t, Request{Argv: []string{"pwd"}})
	assert.NilError(t, err)
	assert.Equal(t, out, cwd+"\n")

	env := []string{"HOME=" + home}
	for _, tc := range []struct{ dir, env, want string }{
		{"/no/such", "HOME=" + home, home}, {"/no/such", "HOME=/no/such", "/"}, {"", "HOME=" + home, home}, {"/usr", "HOME=" + home, "/usr"},
	} {
		env[0] = tc.env
		got, err := workDir(request{Dir: tc.dir, DirOptional: true}, env)
		assert.NilError(t, err)
		assert.Check(t, is.Equal(got, tc.want))
	}
}

func TestPathOfTheRequestCounts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testutil.Script(t, filepath.Join(dir, "special"), "echo found\n")
	s := serve(t, Options{})
	out, _, err := s.run(t, Request{Argv: []string{"special"}, Env: []string{"PATH=" + dir}})
	assert.NilError(t, err)
	assert.Equal(t, out, "found\n")
}

func TestInputAndOutput(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{})
	r, w, err := os.Pipe()
	assert.NilError(t, err)
	const size = 8 << 20
	go func() {
		_, _ = w.WriteString(strings.Repeat("x", size))
		_ = w.Close()
	}()
	out, code, err := s.run(t, Request{Argv: []string{"cat"}, Stdin: r})
	assert.NilError(t, err)
	assert.NilError(t, r.Close())
	assert.Equal(t, code, 0)
	assert.Equal(t, len(out), size)

	out, _, err = s.run(t, Request{Argv: []string{"cat"}}) // without input, the program reads end of file
	assert.NilError(t, err)
	assert.Equal(t, out, "")
}

func TestLongArguments(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{})
	arg := strings.Repeat("a", 100<<10)
	out, _, err := s.run(t, Request{Argv: sh(`echo ${#1} ${#2} ${#3}`, arg, arg, arg)})
	assert.NilError(t, err)
	assert.Equal(t, out, "102400 102400 102400\n")
	_, code, err := s.run(t, Request{Argv: []string{"true", strings.Repeat("a", 4<<20)}})
	assert.ErrorContains(t, err, "argument list or environment too large")
	assert.Equal(t, code, ExitNotExecutable)
}

func TestSignalsAreForwarded(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{})
	for _, tc := range []struct {
		sig  unix.Signal
		name string
	}{{unix.SIGINT, "INT"}, {unix.SIGTERM, "TERM"}, {unix.SIGHUP, "HUP"}, {unix.SIGQUIT, "QUIT"}, {unix.SIGUSR1, "USR1"}, {unix.SIGUSR2, "USR2"}, {unix.SIGWINCH, "WINCH"}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, w := pipe(t)
			// Most of the signals kill sleep, which is in the group; wait returns in any case, because of the trap.
			cmd := s.client(false, sh(fmt.Sprintf(`trap 'echo got; exit 40' %s; echo up; while :; do sleep 1000 & wait; done`, tc.name))...)
			cmd.Stdout = w
			assert.NilError(t, cmd.Start())
			assert.NilError(t, w.Close())
			r.until("up\n")
			assert.NilError(t, cmd.Process.Signal(tc.sig))
			r.until("got\n")
			assert.Check(t, is.Equal(exitCode(cmd.Wait()), 40))
			r.gone()
		})
	}
}

func TestSuspendAndContinue(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{})
	r, w := pipe(t)
	cmd := s.client(false, sh(`trap 'echo alive; exit 0' USR1; echo $$; while :; do sleep 1000 & wait; done`)...)
	cmd.Stdout = w
	assert.NilError(t, cmd.Start())
	assert.NilError(t, w.Close())
	pid := strings.TrimSpace(r.until("\n"))
	assert.NilError(t, cmd.Process.Signal(unix.SIGTSTP))
	// The caller stops, and the kernel reports that to its parent, this test.
	assert.NilError(t, unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WSTOPPED, nil))
	waitState(t, pid, "T")
	assert.NilError(t, cmd.Process.Signal(unix.SIGCONT))
	assert.NilError(t, cmd.Process.Signal(unix.SIGUSR1))
	r.until("alive\n")
	assert.Check(t, is.Equal(exitCode(cmd.Wait()), 0))
}

// waitState waits until a process has the given state of proc_pid_stat(5).
func waitState(t *testing.T, pid, state string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		assert.NilError(t, err)
		if f := strings.Fields(string(b)); f[2] == state {
			return
		}
		assert.Assert(t, time.Now().Before(deadline), "timeout waiting for state %s: %s", state, b)
	}
}

func TestCallerKilledProgramGone(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"plain":       `echo up; sleep 1000`,
		"ignores HUP": `trap '' HUP; echo up; sleep 1000`,
		"stopped":     `echo up; kill -STOP $$`,
		"children":    `sleep 1000 & sleep 1000 & echo up; wait`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, Options{HangupGrace: 100 * time.Millisecond})
			r, w := pipe(t)
			cmd := s.client(false, sh(script)...)
			cmd.Stdout = w
			assert.NilError(t, cmd.Start())
			assert.NilError(t, w.Close())
			r.until("up\n")
			assert.NilError(t, cmd.Process.Kill())
			_ = cmd.Wait()
			r.gone()
		})
	}
}

func TestCancelEndsProgram(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{})
	r, w := pipe(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := Run(ctx, s.socket, Request{Argv: sh("echo up; sleep 1000"), Stdout: w})
		ended <- err
	}()
	r.until("up\n")
	assert.NilError(t, w.Close())
	cancel()
	assert.Check(t, is.ErrorIs(<-ended, context.Canceled))
	r.gone()
}

func TestServiceStopsProgramGone(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{HangupGrace: 100 * time.Millisecond})
	r, w := pipe(t)
	var clients []func() error
	for _, script := range []string{"echo up; sleep 1000", "trap '' HUP TERM; echo up; sleep 1000"} {
		cmd := s.client(false, sh(script)...)
		cmd.Stdout = w
		assert.NilError(t, cmd.Start())
		clients = append(clients, cmd.Wait)
		r.until("up\n")
	}
	assert.NilError(t, w.Close())
	s.stop()
	r.gone()
	for i, want := range []int{ExitSignalBase + int(unix.SIGHUP), ExitSignalBase + int(unix.SIGKILL)} {
		assert.Check(t, is.Equal(exitCode(clients[i]()), want))
	}
}

func TestLeftoversEndWithTheProgram(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{})
	r, w := pipe(t)
	code, err := Run(t.Context(), s.socket, Request{Argv: sh("sleep 1000 & exit 3"), Stdout: w})
	assert.NilError(t, err)
	assert.Equal(t, code, 3)
	assert.NilError(t, w.Close())
	r.gone()
}

func TestCgroupErrorIsReported(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{CgroupFor: func(string) (string, func(), error) { return "", nil, errors.New("no room") }})
	_, code, err := s.run(t, Request{Argv: []string{"true"}})
	assert.Error(t, err, "create cgroup for program: no room")
	assert.Equal(t, code, 1)
}

func TestManyAtOnceAndNoDescriptorLeft(t *testing.T) {
	s := serve(t, Options{})
	_, _, err := s.run(t, Request{Argv: []string{"true"}}) // opens the descriptors that stay open
	assert.NilError(t, err)
	before := openDescriptors(t)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			out, code, err := s.run(t, Request{Argv: sh(fmt.Sprintf("echo %d; exit %d", i, i))})
			assert.Check(t, err)
			assert.Check(t, is.Equal(code, i))
			assert.Check(t, is.Equal(out, fmt.Sprintf("%d\n", i)))
		})
	}
	wg.Wait()
	s.stop()
	assert.Check(t, openDescriptors(t) <= before, "descriptors leaked: %d, were %d", openDescriptors(t), before)
}

func TestProgramHasNoOtherDescriptors(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{})
	out, _, err := s.run(t, Request{Argv: []string{"ls", "/proc/self/fd"}})
	assert.NilError(t, err)
	for _, name := range strings.Fields(out) {
		fd, err := strconv.Atoi(name)
		assert.NilError(t, err)
		// The test may have inherited descriptors without close-on-exec. All others are closed on exec.
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		given := err == nil && flags&unix.FD_CLOEXEC == 0
		assert.Check(t, fd <= 3 || given, "descriptor %d leaked into the program", fd) // 3 is ls reading the directory
	}
}

func TestInvalidMessagesDoNoHarm(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{})
	for _, junk := range []string{"", "x", "\x00\x00\x00\x02{}", "\xff\xff\xff\xffhello", "\x00\x00\x00\x05nope!"} {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.socket, Net: "unix"})
		assert.NilError(t, err)
		_, err = c.Write([]byte(junk))
		assert.NilError(t, err)
		assert.NilError(t, c.CloseWrite())
		var r reply
		_ = readFrame(c, &r)
		assert.Check(t, is.Equal(r.PID, 0))
		assert.NilError(t, c.Close())
	}
	_, code, err := s.run(t, Request{Argv: []string{"true"}})
	assert.NilError(t, err)
	assert.Equal(t, code, 0)
}

func FuzzReadFrame(f *testing.F) {
	for _, s := range []string{"", "\x00\x00\x00\x02{}", "\x00\x00\x00\x0e{\"signal\":15}", "\xff\xff\xff\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		var c control
		if err := readFrame(strings.NewReader(in), &c); err != nil {
			return
		}
		b, err := frame(c)
		assert.NilError(t, err)
		var again control
		assert.NilError(t, readFrame(strings.NewReader(string(b)), &again))
		assert.Equal(t, again, c)
	})
}

// TestLookPathOfAnother checks that lookPath ignores directories of PATH that are not accessible.
func TestLookPathOfAnother(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.OrdinaryUser)
	locked := filepath.Join(t.TempDir(), "locked")
	assert.NilError(t, os.Mkdir(locked, 0))
	path := locked + ":/usr/bin:/bin"
	_, err := lookPath("no-such-program", path, "/")
	assert.ErrorContains(t, err, "no-such-program: not found in the node's PATH")
	found, err := lookPath("true", path, "/")
	assert.NilError(t, err)
	assert.Equal(t, filepath.Base(found), "true")
}
