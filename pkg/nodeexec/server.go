package nodeexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/status/localsock"
)

// DefaultHangupGrace is how long a program that was hung up on may take to end before it is killed.
const DefaultHangupGrace = 2 * time.Second

// Options of the service. The zero value works: no environment, no cgroup, no log.
type Options struct {
	// Env is the environment that programs start with, KEY=VALUE. A request's own is laid over it. PATH and HOME in it
	// are used for the search of the program and for where it starts.
	Env []string
	// CgroupFor makes a cgroup for the program of the given id (unique in this run) and returns its directory inside
	// and how to remove it. done is called after the program and all else in the cgroup were killed; it may have to
	// wait for them to be gone. Nil: programs stay in the service's own cgroup.
	CgroupFor func(id string) (dir string, done func(), err error)
	// HangupGrace lies between SIGHUP and SIGKILL when the caller or the service goes away. Default DefaultHangupGrace.
	HangupGrace time.Duration
	// Log gets a debug line a program and a warning a fault.
	Log logrus.FieldLogger
}

// Listen makes the socket at path for Serve: mode 0600 in a directory of mode 0700. See localsock.Listen.
func Listen(path string) (*net.UnixListener, error) { return localsock.Listen(path) }

// Serve runs programs for the callers of l until ctx ends, then hangs up on those that still run, waits for them and
// returns nil. Only callers of the process's own uid, as its user namespace sees it, are served. It closes l.
//
// Runs in: child (node role). Programs get SIGKILL when the process ends without a word.
func Serve(ctx context.Context, l *net.UnixListener, o Options) error {
	if o.HangupGrace <= 0 {
		o.HangupGrace = DefaultHangupGrace
	}
	if o.Log == nil {
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		o.Log = quiet
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &server{o: o, starter: newStarter()}
	defer s.starter.stop()
	defer s.conns.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	own := localsock.Own(l)
	for {
		c, err := own.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return nil
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			o.Log.WithError(err).Warn("exec service has no descriptor for a caller")
			if !pause(ctx, o.HangupGrace) {
				return nil
			}
			continue
		}
		if err != nil {
			return errors.Join(fmt.Errorf("accept exec caller: %w", err), l.Close())
		}
		s.conns.Go(func() { s.serve(ctx, c.(*net.UnixConn)) })
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

type server struct {
	o       Options
	starter *starter
	conns   sync.WaitGroup
	lastID  atomic.Uint64
}

// serve is one connection from its request to the end of its program.
func (s *server) serve(ctx context.Context, c *net.UnixConn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.CloseRead() }) // the reader sees the end of the caller
	defer stop()
	req, fds, err := readRequest(c)
	files := asFiles(fds)
	if err != nil {
		closeAll(files)
		if !errors.Is(err, io.EOF) {
			s.o.Log.WithError(err).Warn("exec request is refused")
			_ = writeFrame(c, reply{Error: "read exec request: " + err.Error(), Code: 1})
		}
		return
	}
	id := strconv.FormatUint(s.lastID.Add(1), 10)
	log := s.o.Log.WithField("exec", id)
	p, done, err := s.start(id, req, files)
	closeAll(files) // the program has its own; ours would keep pipes and terminals open
	defer done()
	if err != nil {
		log.WithError(err).Debug("program was not started")
		_ = writeFrame(c, faultReply(err))
		return
	}
	log.WithField("pid", p.p.Pid).Debugf("program started: %s", req.Argv[0])
	s.attend(c, p, log)
}

// attend passes signals on until the program ends. A caller that goes away makes it end.
func (s *server) attend(c *net.UnixConn, p *process, log logrus.FieldLogger) {
	exited := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		readSignals(c, p)
		p.signal(unix.SIGHUP)
		p.signal(unix.SIGCONT) // a stopped program takes no other signal
		t := time.NewTimer(s.o.HangupGrace)
		defer t.Stop()
		select {
		case <-exited:
		case <-t.C:
			log.Debug("program outlived its caller, killing it")
			p.kill()
		}
	})
	// A caller that is gone already is noticed by the reader.
	_ = writeFrame(c, reply{PID: p.p.Pid})
	r := p.wait()
	log.Debugf("program ended with code %d", r.Code)
	_ = writeFrame(c, r)
	close(exited)
	_ = c.CloseRead()
	reader.Wait()
}

// readSignals delivers the caller's signals until its end of the connection is closed or says something else.
func readSignals(c *net.UnixConn, p *process) {
	for {
		var m control
		if err := readFrame(c, &m); err != nil {
			return
		}
		if m.Signal > 0 {
			p.signal(syscall.Signal(m.Signal))
		}
	}
}

// start makes the cgroup and the program in it. done is never nil and must be called after the program's end.
func (s *server) start(id string, req request, files []*os.File) (p *process, done func(), err error) {
	leaf, done := "", func() {}
	if s.o.CgroupFor != nil {
		dir, remove, err := s.o.CgroupFor(id)
		if err != nil {
			return nil, done, fmt.Errorf("make cgroup for program: %w", err)
		}
		leaf = dir
		if remove != nil {
			done = remove
		}
	}
	p, err = spawn(s.starter, req, mergeEnv(s.o.Env, req.Env), files, leaf)
	return p, done, err
}

func faultReply(err error) reply {
	var se *StartError
	if errors.As(err, &se) {
		return reply{Error: se.Text, Code: se.Code}
	}
	return reply{Error: err.Error(), Code: 1}
}

func asFiles(fds []int) []*os.File {
	var fs []*os.File
	for _, fd := range fds {
		fs = append(fs, os.NewFile(uintptr(fd), "received"))
	}
	return fs
}

func closeAll(fs []*os.File) {
	for _, f := range fs {
		_ = f.Close()
	}
}
