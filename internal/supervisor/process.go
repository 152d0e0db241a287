package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// drainWait limits the wait for remaining output after a process has ended. It is used up only if a descendant keeps the
// pipe open.
const drainWait = 250 * time.Millisecond

// process is an instance that runs a program.
type process struct {
	u      *unit
	spec   Process
	cmd    *exec.Cmd
	output *os.File      // read end of the pipe; closed by the pump
	pumped chan struct{} // closed when the pump has ended
	exited chan struct{} // closed when the process is reaped and its remaining processes are killed

	mu     sync.Mutex // held while signalling and while reaping, so that a reaped process ID is never signalled
	reaped bool

	// Valid when exited is closed.
	how     string
	success bool
	left    error
}

// startProcess starts spec for u. If it returns an error, nothing runs.
func (u *unit) startProcess(spec Process) (instance, error) {
	if !filepath.IsAbs(spec.Path) {
		return nil, fmt.Errorf("start %q: path is not absolute", spec.Path)
	}
	if err := u.out.open(spec.LogPath); err != nil {
		return nil, err
	}
	cgroup := -1
	if spec.CgroupDir != "" {
		dir, err := os.Open(spec.CgroupDir)
		if err != nil {
			return nil, fmt.Errorf("open cgroup: %w", err)
		}
		defer dir.Close()
		cgroup = int(dir.Fd())
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("create output pipe: %w", err)
	}
	defer w.Close()
	p := &process{u: u, spec: spec, output: r, pumped: make(chan struct{}), exited: make(chan struct{})}
	p.cmd = &exec.Cmd{Path: spec.Path, Args: spec.Args, Env: spec.Env, Dir: spec.Dir, Stdout: w, Stderr: w,
		SysProcAttr: attributes(cgroup)}
	if err := u.g.starter.Do(p.cmd.Start); err != nil {
		r.Close()
		if spec.CgroupDir != "" {
			return nil, fmt.Errorf("start in cgroup %s: %w", spec.CgroupDir, err)
		}
		return nil, fmt.Errorf("start: %w", err)
	}
	p.setOOMScoreAdj()
	u.out.pump(r, p.pumped)
	go p.wait()
	return p, nil
}

// attributes returns the attributes of every process: its own process group, SIGKILL as parent death signal, and the cgroup
// with the given descriptor if it is not negative.
func attributes(cgroup int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Setpgid:     true,
		Pdeathsig:   syscall.SIGKILL,
		UseCgroupFD: cgroup >= 0,
		CgroupFD:    max(cgroup, 0),
	}
}

func (p *process) setOOMScoreAdj() {
	if p.spec.OOMScoreAdj == nil {
		return
	}
	if err := os.WriteFile(proc.Host.File(p.pid(), "oom_score_adj"), []byte(strconv.Itoa(*p.spec.OOMScoreAdj)), 0); err != nil {
		p.u.g.o.Log.WithField("unit", p.u.Name).WithError(err).Debug("cannot set the OOM score")
	}
}

func (p *process) pid() int                       { return p.cmd.Process.Pid }
func (p *process) gone() <-chan struct{}          { return p.exited }
func (p *process) declaredReady() <-chan struct{} { return nil }
func (p *process) outcome() (string, bool, error) { return p.how, p.success, p.left }

// wait waits for the end of the process, kills the processes that it left, and only then reaps it.
func (p *process) wait() {
	defer close(p.exited)
	proc.AwaitExit(p.pid())
	if !p.u.KeepChildren {
		p.left = p.killRemaining()
	}
	p.mu.Lock()
	err := p.cmd.Wait()
	p.reaped = true
	p.mu.Unlock()
	p.how, p.success = describeExit(p.cmd.ProcessState, err)

	if within(p.pumped, drainWait) || p.u.KeepChildren {
		return // Kept children may still write; the pump runs until the unit ends.
	}
	_ = p.output.SetReadDeadline(time.Unix(1, 0)) // fails only for a closed pipe
	<-p.pumped
}

// describeExit returns how a process ended, and whether it succeeded.
func describeExit(state *os.ProcessState, err error) (how string, success bool) {
	if state == nil {
		return fmt.Sprintf("wait for process: %v", err), false
	}
	return proc.ExitText(state.Sys().(syscall.WaitStatus)), state.ExitCode() == 0
}

// signal sends sig to the process group, or with KeepChildren only to the main process.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return
	}
	to := -p.pid()
	if p.u.KeepChildren {
		to = p.pid()
	}
	// Fails only for a process that changed its user; the caller then times out waiting for it.
	_ = syscall.Kill(to, sig)
}

// stop sends StopSignal and, after StopGrace, SIGKILL. It returns an error when processes remain.
func (p *process) stop() (string, error) {
	u := p.u
	p.signal(u.StopSignal)
	if within(p.exited, u.StopGrace) {
		return "", p.left
	}
	how := fmt.Sprintf("did not exit within %v of %s; killed", u.StopGrace, unix.SignalName(u.StopSignal))
	p.signal(syscall.SIGKILL)
	// KillWait applies to the process and then to the processes that it left.
	if within(p.exited, 2*u.g.o.KillWait+drainWait) {
		return how, p.left
	}
	return how, fmt.Errorf("process %d still exists %v after SIGKILL", p.pid(), u.g.o.KillWait)
}
