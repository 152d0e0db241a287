package nodeexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// envClient makes the test binary a command-line client, which runs its arguments with the service at the given socket.
const (
	envClient = "NODEEXEC_TEST_CLIENT"
	envTTY    = "NODEEXEC_TEST_TTY"
)

// excerpt is the maximum size of shown output in bytes.
const excerpt = 500

// patience is the time limit for waits in tests.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if socket := os.Getenv(envClient); socket != "" {
		os.Exit(clientMain(socket))
	}
	testutil.QuickChildren()
	testutil.HearHangup()
	goleak.VerifyTestMain(m)
}

func clientMain(socket string) int {
	code, err := Run(context.Background(), socket, Request{
		Argv: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		TTY: os.Getenv(envTTY) != "", ForwardSignals: true, Dir: "/",
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
	}
	return code
}

// service is one running Serve.
type service struct {
	socket string
	stop   func() // ends Serve and waits for it
}

func serve(t *testing.T, o Options) service {
	t.Helper()
	// A short path, because the names of tests are too long for socket paths.
	dir, err := os.MkdirTemp("", "ne")
	assert.NilError(t, err)
	t.Cleanup(func() { assert.NilError(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "exec.sock")
	l, err := Listen(socket)
	assert.NilError(t, err)
	if o.Env == nil {
		o.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, o) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-served:
			assert.NilError(t, err)
		case <-time.After(patience):
			t.Fatal("the service does not end")
		}
	}
	t.Cleanup(stop)
	return service{socket: socket, stop: stop}
}

// client returns the command-line client that runs argv with s.
func (s service) client(tty bool, argv ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", argv...)
	cmd.Env = append(os.Environ(), envClient+"="+s.socket)
	if tty {
		cmd.Env = append(cmd.Env, envTTY+"=1")
	}
	return cmd
}

// run runs req in this process and returns its output.
func (s service) run(t *testing.T, req Request) (out string, code int, err error) {
	t.Helper()
	r, w, perr := os.Pipe()
	assert.NilError(t, perr)
	defer r.Close()
	req.Stdout, req.Stderr = w, w
	text := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r)
		text <- string(b)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	code, err = Run(ctx, s.socket, req)
	assert.NilError(t, w.Close())
	return <-text, code, err
}

func sh(script string, args ...string) []string {
	return append([]string{"sh", "-c", script, "sh"}, args...)
}

// lineReader reads lines from a pipe or terminal with a deadline.
type lineReader struct {
	t   *testing.T
	f   *os.File
	buf strings.Builder
}

// until reads until the input contains want, and returns the input since the last call.
func (l *lineReader) until(want string) string {
	l.t.Helper()
	assert.NilError(l.t, l.f.SetReadDeadline(time.Now().Add(patience)))
	b := make([]byte, 4096)
	for {
		if i := strings.Index(l.buf.String(), want); i >= 0 {
			all := l.buf.String()
			l.buf.Reset()
			l.buf.WriteString(all[i+len(want):])
			return all[:i+len(want)]
		}
		n, err := l.f.Read(b)
		l.buf.Write(b[:n])
		if err != nil && n == 0 {
			all := l.buf.String()
			l.t.Fatalf("timeout waiting for %q (%v), got %q", want, err, all[max(0, len(all)-excerpt):])
		}
	}
}

// gone waits until all processes that have the other end of the pipe have ended.
func (l *lineReader) gone() {
	l.t.Helper()
	assert.NilError(l.t, l.f.SetReadDeadline(time.Now().Add(patience)))
	_, err := io.Copy(io.Discard, l.f)
	assert.NilError(l.t, err, "a process is still running")
}

func pipe(t *testing.T) (*lineReader, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	assert.NilError(t, err)
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return &lineReader{t: t, f: r}, w
}

func exitCode(err error) int {
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		if ws := ee.Sys().(interface{ Signaled() bool }); ws.Signaled() {
			return -1
		}
		return ee.ExitCode()
	}
	if err != nil {
		return -2
	}
	return 0
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	es, err := os.ReadDir("/proc/self/fd")
	assert.NilError(t, err)
	return len(es)
}

func termios(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	rc, err := f.SyscallConn()
	assert.NilError(t, err)
	var tio *unix.Termios
	assert.NilError(t, rc.Control(func(fd uintptr) { tio, err = unix.IoctlGetTermios(int(fd), unix.TCGETS) }))
	assert.NilError(t, err)
	return *tio
}
