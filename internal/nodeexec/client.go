package nodeexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/localsock"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Request describes a program to run inside the node.
type Request struct {
	// Argv is the program and its arguments. A program name without a slash is searched in the node's PATH.
	Argv []string
	// Env (KEY=VALUE) is added to the node's environment and overrides it. The caller's environment is not passed.
	Env []string
	// Dir is the working directory; it must exist inside. If it is empty, the program starts in the caller's working directory if
	// that exists inside, otherwise in HOME, otherwise in /.
	Dir string
	// Stdin, Stdout and Stderr become descriptors of the program. Nil means /dev/null. With TTY, Stdin and Stdout are the caller's
	// terminal and Stderr is not used.
	Stdin, Stdout, Stderr *os.File
	// TTY runs the program on a new terminal with job control. If Stdin is a terminal, it is in raw mode while the program is running.
	TTY bool
	// ForwardSignals forwards INT, TERM, HUP, QUIT, USR1, USR2, WINCH, TSTP and CONT of the calling process to the program. It
	// replaces the process's handling of these signals, so use it in command-line programs and not in embedders.
	ForwardSignals bool
}

// Run runs req with the exec service at socket and returns the exit code of the program, or ExitSignalBase plus the number of the signal
// that ended it. When ctx ends, the program gets SIGHUP, and SIGKILL if it continues to run.
//
// Errors: a *StartError, with its code as the exit code, if the program could not be started; of class errdefs.ErrNotRunning if the
// service is not running; errdefs.ErrTimeout if it does not respond.
//
// Runs in: parent or either.
func Run(ctx context.Context, socket string, req Request) (int, error) {
	if len(req.Argv) == 0 || req.Argv[0] == "" {
		return 1, errdefs.Config("no program to run")
	}
	c, err := dial(socket)
	if err != nil {
		return 1, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	run := runPlain
	if req.TTY {
		run = runTerminal
	}
	code, err := run(c, req)
	if ctx.Err() != nil {
		return code, fmt.Errorf("run %s inside the node: %w", req.Argv[0], context.Cause(ctx))
	}
	return code, err
}

func dial(socket string) (*net.UnixConn, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err == nil {
		return c, nil
	}
	if localsock.NotRunning(err) {
		return nil, errdefs.NotRunning("no process serves %s", socket)
	}
	return nil, fmt.Errorf("connect to the exec service: %w", err)
}

// runPlain runs the program with the caller's descriptors.
func runPlain(c *net.UnixConn, req Request) (int, error) {
	files, closeNull, err := orNull(req.Stdin, req.Stdout, req.Stderr)
	if err != nil {
		return 1, err
	}
	defer closeNull()
	start := func() {}
	if req.ForwardSignals {
		var stop func()
		start, stop = forwardSignals(c)
		defer stop()
	}
	if err := send(c, req, files); err != nil {
		return 1, err
	}
	start()
	return waitExit(c, req.Argv[0])
}

func send(c *net.UnixConn, req Request, files []*os.File) error {
	wire := request{Argv: req.Argv, Env: req.Env, Dir: req.Dir, TTY: req.TTY}
	if wire.Dir == "" {
		// If Getwd fails, the service chooses the directory.
		wire.Dir, _ = os.Getwd()
		wire.DirOptional = true
	}
	fds := make([]int, len(files))
	for i, f := range files {
		// Fd sets pipes that Go created to blocking mode, which programs expect.
		fds[i] = int(f.Fd())
	}
	defer runtime.KeepAlive(files)
	if err := writeRequest(c, wire, fds); err != nil {
		// The server has ended during the request.
		return errdefs.NotRunning("send exec request: %w", err)
	}
	return nil
}

// startLimit is the time within which the service must have started a program, or have reported why it cannot.
const startLimit = 30 * time.Second

// waitExit reads the replies until the program has ended.
func waitExit(c *net.UnixConn, name string) (int, error) {
	deadline := time.Now().Add(startLimit)
	for {
		var r reply
		if err := errors.Join(c.SetReadDeadline(deadline), readFrame(c, &r)); err != nil {
			return 1, lost(name, err)
		}
		deadline = time.Time{}
		switch {
		case r.Exited && r.Error != "":
			return 1, errors.New(r.Error)
		case r.Exited:
			return r.Code, nil
		case r.Error != "":
			return r.Code, &StartError{Code: r.Code, Text: r.Error}
		}
	}
}

func lost(name string, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errdefs.Timeout("start %s inside the node: no response from the node role within %v", name, startLimit).Do(errdefs.ShowStatus).Do(errdefs.Stop)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) {
		return errdefs.NotRunning("the node ended while %s was running", name)
	}
	return fmt.Errorf("wait for %s: %w", name, err)
}

// orNull replaces nil files with /dev/null. release closes /dev/null.
func orNull(fs ...*os.File) (files []*os.File, release func(), err error) {
	var null *os.File
	release = func() {
		if null != nil {
			_ = null.Close()
		}
	}
	for _, f := range fs {
		if f == nil && null == nil {
			if null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
				return nil, func() {}, err
			}
		}
		if f == nil {
			f = null
		}
		files = append(files, f)
	}
	return files, release, nil
}
