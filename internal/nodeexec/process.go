package nodeexec

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

// process is one started program, the leader of its session and process group.
type process struct {
	p    *os.Process
	leaf string // cgroup directory; empty if the program has no cgroup

	mu    sync.Mutex
	ended bool
}

// spawn starts the program of req with the files. The error is a *StartError if the request is the cause.
func spawn(s *proc.Starter, req request, env []string, files []*os.File, leaf string) (*process, error) {
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
		defer func() { _ = unix.Close(fd) }()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, fd
	}
	p := &process{leaf: leaf}
	err = s.Do(func() (err error) {
		p.p, err = os.StartProcess(path, req.Argv, attr)
		return err
	})
	if err != nil {
		return nil, startFault(req.Argv[0], err)
	}
	return p, nil
}

// startFault converts an error of execve(2) to a *StartError if the program is the cause.
func startFault(name string, err error) error {
	switch {
	case errors.Is(err, unix.ENOEXEC):
		return &StartError{ExitNotExecutable, name + ": exec format error: not an executable program for this machine"}
	case errors.Is(err, unix.ENOENT):
		return &StartError{ExitNotExecutable, name + ": the interpreter of the program does not exist inside the node"}
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ETXTBSY):
		return &StartError{ExitNotExecutable, fmt.Sprintf("%s: %v", name, errors.Unwrap(err))}
	case errors.Is(err, unix.E2BIG):
		return &StartError{ExitNotExecutable, name + ": argument list or environment too large"}
	}
	return fmt.Errorf("start %s: %w", name, err)
}

// signal sends sig to the process group, unless the leader has ended. The pid cannot be reused before the leader is reaped.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.signalGroup(sig)
	}
}

func (p *process) signalGroup(sig syscall.Signal) {
	// ESRCH means that the group is empty. EPERM means that all its processes have changed their user; killLeaf kills them.
	_ = unix.Kill(-p.p.Pid, sig)
}

// kill kills the process group and all processes in the cgroup.
func (p *process) kill() {
	p.signal(unix.SIGKILL)
	p.killLeaf()
}

func (p *process) killLeaf() {
	if p.leaf != "" {
		_ = cgroupv2.Kill(p.leaf) // the code that removes the cgroup reports the remaining processes
	}
}

// wait blocks until the leader has ended, kills the remaining processes and reaps the leader.
func (p *process) wait() reply {
	proc.AwaitExit(p.p.Pid) // the pid is not reused while the process group is killed
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
