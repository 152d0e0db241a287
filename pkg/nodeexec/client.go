package nodeexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status/localsock"
)

// Request is a program to run inside.
type Request struct {
	// Argv is the program and its arguments. A name without a slash is searched in the node's PATH, inside.
	Argv []string
	// Env (KEY=VALUE) is laid over the node's own environment. Nothing of the caller's environment is passed besides.
	Env []string
	// Dir is where the program starts; it must exist inside. Empty: the caller's own directory where that exists
	// inside, else HOME, else /.
	Dir string
	// Stdin, Stdout and Stderr become the program's own descriptors. Nil is /dev/null. With TTY, Stdin and Stdout are
	// the caller's terminal and Stderr is not used.
	Stdin, Stdout, Stderr *os.File
	// TTY gives the program a terminal of its own, with job control. Stdin is put in raw mode while it is a terminal.
	TTY bool
	// ForwardSignals passes INT, TERM, HUP, QUIT, USR1, USR2, WINCH, TSTP and CONT of the calling process on to the
	// program. It takes over the process's handling of them: command lines want that, embedders do not.
	ForwardSignals bool
}

// Run runs req through the service at socket and returns its exit code: its own, or 128 and the signal that ended it.
// A program that was not started gives a *StartError and its code. No service gives an error of class
// errdefs.ErrNotRunning. When ctx ends the program is hung up on, and killed if it does not mind.
//
// Runs in: parent or either.
func Run(ctx context.Context, socket string, req Request) (int, error) {
	if len(req.Argv) == 0 || req.Argv[0] == "" {
		return 1, errdefs.Class(errdefs.ErrConfig, errors.New("no program to run was named"))
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
		return nil, errdefs.Class(errdefs.ErrNotRunning, fmt.Errorf("nobody answers at %s", socket))
	}
	return nil, fmt.Errorf("connect to the exec service: %w", err)
}

// runPlain gives the caller's descriptors to the program.
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
	return await(c, req.Argv[0])
}

func send(c *net.UnixConn, req Request, files []*os.File) error {
	wire := request{Argv: req.Argv, Env: req.Env, Dir: req.Dir, TTY: req.TTY}
	if wire.Dir == "" {
		// Without a directory of its own the caller gets the node's choice.
		wire.Dir, _ = os.Getwd()
		wire.DirOptional = true
	}
	fds := make([]int, len(files))
	for i, f := range files {
		// Fd puts pipes that Go made into blocking mode, which is what programs expect of their descriptors.
		fds[i] = int(f.Fd())
	}
	defer runtime.KeepAlive(files)
	if err := writeRequest(c, wire, fds); err != nil {
		// A server that ends while we speak; its reply, if any, is of no use.
		return errdefs.Class(errdefs.ErrNotRunning, fmt.Errorf("send exec request: %w", err))
	}
	return nil
}

// await reads the replies until the program has ended.
func await(c *net.UnixConn, name string) (int, error) {
	for {
		var r reply
		if err := readFrame(c, &r); err != nil {
			return 1, lost(name, err)
		}
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
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) {
		return errdefs.Class(errdefs.ErrNotRunning, fmt.Errorf("the node ended while %s ran", name))
	}
	return fmt.Errorf("wait for %s: %w", name, err)
}

// orNull puts /dev/null in the place of nil files. release closes what it opened.
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
