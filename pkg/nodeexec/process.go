package nodeexec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// starter starts every program of a server from one thread that lives as long as the server: the parent-death signal
// comes when the thread that made the child ends, not the process (prctl(2), PR_SET_PDEATHSIG), and Go ends threads as
// it likes.
type starter struct {
	jobs chan func()
	done chan struct{}
}

func newStarter() *starter {
	s := &starter{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

func (s *starter) start(path string, argv []string, attr *os.ProcAttr) (p *os.Process, err error) {
	ran := make(chan struct{})
	s.jobs <- func() {
		defer close(ran)
		p, err = os.StartProcess(path, argv, attr)
	}
	<-ran
	return p, err
}

func (s *starter) stop() {
	close(s.jobs)
	<-s.done
}

// process is one started program, the leader of its session and process group.
type process struct {
	p    *os.Process
	leaf string // cgroup directory, empty without one

	mu    sync.Mutex
	ended bool
}

// spawn starts req with the files. Its errors are StartErrors where the request is at fault.
func spawn(s *starter, req request, env []string, files []*os.File, leaf string) (*process, error) {
	dir, err := workDir(req, env)
	if err != nil {
		return nil, err
	}
	path, err := lookPath(req.Argv[0], getenv(env, "PATH"), dir)
	if err != nil {
		return nil, err
	}
	attr := &os.ProcAttr{Dir: dir, Env: env, Files: files, Sys: &syscall.SysProcAttr{
		Setsid:    true,
		Setctty:   req.TTY,
		Pdeathsig: syscall.SIGKILL,
	}}
	if leaf != "" {
		fd, err := unix.Open(leaf, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open cgroup %s: %w", leaf, err)
		}
		defer func() { _ = unix.Close(fd) }() // it was only referred to
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, fd
	}
	p, err := s.start(path, req.Argv, attr)
	if err != nil {
		return nil, startFault(req.Argv[0], err)
	}
	return &process{p: p, leaf: leaf}, nil
}

// startFault words the errors of execve(2) that the program itself is the cause of.
func startFault(name string, err error) error {
	switch {
	case errors.Is(err, unix.ENOEXEC):
		return &StartError{ExitNotExecutable, name + ": not a program this machine can run"}
	case errors.Is(err, unix.ENOENT):
		return &StartError{ExitNotExecutable, name + ": its interpreter is not there inside the node"}
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ETXTBSY):
		return &StartError{ExitNotExecutable, fmt.Sprintf("%s: %v", name, errors.Unwrap(err))}
	case errors.Is(err, unix.E2BIG):
		return &StartError{ExitNotExecutable, name + ": too many arguments or too large an environment"}
	}
	return fmt.Errorf("start %s: %w", name, err)
}

// signal sends sig to the whole process group, unless the leader has ended: until it is reaped its number cannot be
// another's.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.signalGroup(sig)
	}
}

func (p *process) signalGroup(sig syscall.Signal) {
	// ESRCH: the group is empty. EPERM: all that is left of it has changed its user; cgroup.kill reaches those.
	_ = unix.Kill(-p.p.Pid, sig)
}

// kill ends the process group and everything in the cgroup.
func (p *process) kill() {
	p.signal(unix.SIGKILL)
	p.killLeaf()
}

// killLeaf ends what is in the cgroup (cgroup.kill, since Linux 5.14).
func (p *process) killLeaf() {
	if p.leaf == "" {
		return
	}
	if f, err := os.OpenFile(filepath.Join(p.leaf, "cgroup.kill"), os.O_WRONLY, 0); err == nil {
		// Without the file, or on an error of it, the owner of the cgroup still removes it and says what is left.
		_, _ = f.WriteString("1")
		_ = f.Close()
	}
}

// wait blocks until the leader has ended, kills what it left behind and reaps it.
func (p *process) wait() reply {
	// WNOWAIT leaves a zombie, which keeps the number taken while the rest of the group is killed by it.
	for {
		err := unix.Waitid(unix.P_PID, p.p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.mu.Lock()
	p.ended = true
	p.signalGroup(unix.SIGKILL)
	p.mu.Unlock()
	p.killLeaf()
	st, err := p.p.Wait()
	if err != nil {
		return reply{Exited: true, Error: fmt.Sprintf("wait for program: %v", err), Code: 1}
	}
	ws, ok := st.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return reply{Exited: true, Signal: int(ws.Signal()), Code: ExitSignalBase + int(ws.Signal())}
	}
	return reply{Exited: true, Code: st.ExitCode()}
}
