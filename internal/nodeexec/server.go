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

	"github.com/rootlessnode/rootlessnode/internal/localsock"
	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// DefaultHangupGrace is the default time between SIGHUP and SIGKILL for a program whose caller has gone.
const DefaultHangupGrace = 2 * time.Second

// Options are options for Serve. The zero value is valid: no environment, no cgroups, no log.
type Options struct {
	// Env is the environment of programs, KEY=VALUE. Variables of a request override it. PATH and HOME determine where the program
	// is searched and in which directory it starts.
	Env []string
	// CgroupFor creates a cgroup for the program with the given id, which is unique in this run. It returns the directory of the
	// cgroup inside and a function that removes it. done is called after the processes in the cgroup were killed; it may have to
	// wait for their end. If CgroupFor is nil, programs run in the cgroup of the service.
	CgroupFor func(id string) (dir string, done func(), err error)
	// HangupGrace is the time between SIGHUP and SIGKILL when the caller or the service ends. Default: DefaultHangupGrace.
	HangupGrace time.Duration
	// Log receives debug messages about each program and warnings about errors.
	Log logrus.FieldLogger
}

// Listen creates the socket at path for Serve, with mode 0600 in a directory with mode 0700. See localsock.Listen.
func Listen(path string) (*net.UnixListener, error) { return localsock.Listen(path) }

// Serve runs programs for the clients of l until ctx ends. Then it ends the running programs, waits for them and returns nil. It accepts
// only clients with the uid of this process in its user namespace. It closes l.
//
// Runs in: child (node role). Programs get SIGKILL when the process of the service ends unexpectedly.
func Serve(ctx context.Context, l *net.UnixListener, o Options) error {
	if o.HangupGrace <= 0 {
		o.HangupGrace = DefaultHangupGrace
	}
	if o.Log == nil {
		discard := logrus.New()
		discard.SetOutput(io.Discard)
		o.Log = discard
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &server{o: o, starter: proc.NewStarter()}
	defer s.starter.Stop()
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
			o.Log.WithError(err).Warn("accept exec client: too many open files")
			if !pause(ctx, o.HangupGrace) {
				return nil
			}
			continue
		}
		if err != nil {
			return errors.Join(fmt.Errorf("accept exec client: %w", err), l.Close())
		}
		s.conns.Go(func() { s.serve(ctx, c.(*net.UnixConn)) })
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

type server struct {
	o       Options
	starter *proc.Starter
	conns   sync.WaitGroup
	lastID  atomic.Uint64
}

// serve handles one connection from the request to the end of the program.
func (s *server) serve(ctx context.Context, c *net.UnixConn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.CloseRead() }) // for the reader, the same as the end of the client
	defer stop()
	req, fds, err := readRequest(c)
	files := asFiles(fds)
	if err != nil {
		closeAll(files)
		if !errors.Is(err, io.EOF) {
			s.o.Log.WithError(err).Warn("refused exec request")
			_ = writeFrame(c, reply{Error: "read exec request: " + err.Error(), Code: 1})
		}
		return
	}
	id := strconv.FormatUint(s.lastID.Add(1), 10)
	log := s.o.Log.WithField("exec", id)
	p, done, err := s.start(id, req, files)
	closeAll(files) // the program has duplicates; these would keep pipes and terminals open
	defer done()
	if err != nil {
		log.WithError(err).Debug("start program")
		_ = writeFrame(c, faultReply(err))
		return
	}
	log.WithField("pid", p.p.Pid).Debugf("program started: %s", req.Argv[0])
	s.supervise(c, p, log)
}

// supervise forwards signals from the client until the program ends. It ends the program when the client closes the connection.
func (s *server) supervise(c *net.UnixConn, p *process, log logrus.FieldLogger) {
	exited := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		readSignals(c, p)
		p.signal(unix.SIGHUP)
		p.signal(unix.SIGCONT) // a stopped program does not handle other signals
		select {
		case <-exited:
		case <-time.After(s.o.HangupGrace):
			log.Debug("program did not end after SIGHUP; killing it")
			p.kill()
		}
	})
	// On an error, the reader detects the end of the client.
	_ = writeFrame(c, reply{PID: p.p.Pid})
	r := p.wait()
	log.Debugf("program ended with code %d", r.Code)
	_ = writeFrame(c, r)
	close(exited)
	_ = c.CloseRead()
	reader.Wait()
}

// readSignals sends the client's signals to the program until the client closes the connection or sends an invalid message.
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

// start creates the cgroup and starts the program in it. done is never nil and must be called after the program has ended.
func (s *server) start(id string, req request, files []*os.File) (p *process, done func(), err error) {
	leaf, done := "", func() {}
	if s.o.CgroupFor != nil {
		dir, remove, err := s.o.CgroupFor(id)
		if err != nil {
			return nil, done, fmt.Errorf("create cgroup for program: %w", err)
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
