package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// drainWait is how long output that is still in the pipe may take when the process that wrote it is gone. Only a
// descendant that holds the pipe open uses it up.
const drainWait = 250 * time.Millisecond

// process is a program that runs as an instance.
type process struct {
	u      *unit
	spec   Process
	cmd    *exec.Cmd
	output *os.File      // our end of the pipe; closed by the pump
	pumped chan struct{} // closed when the pump has ended
	exited chan struct{} // closed when it is reaped and its rest removed

	mu     sync.Mutex // held while signalling and while reaping, so that no signal follows a reaped number
	reaped bool

	// Valid when exited is closed.
	how  string
	well bool
	left error
}

// startProcess starts spec for u. Its error means that nothing runs.
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
		return nil, fmt.Errorf("make pipe for output: %w", err)
	}
	defer w.Close()
	p := &process{u: u, spec: spec, output: r, pumped: make(chan struct{}), exited: make(chan struct{})}
	p.cmd = &exec.Cmd{Path: spec.Path, Args: spec.Args, Env: spec.Env, Dir: spec.Dir, Stdout: w, Stderr: w,
		SysProcAttr: attributes(cgroup)}
	if err := u.g.starter.do(p.cmd.Start); err != nil {
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

func (p *process) setOOMScoreAdj() {
	if p.spec.OOMScoreAdj == nil {
		return
	}
	file := "/proc/" + strconv.Itoa(p.pid()) + "/oom_score_adj"
	if err := os.WriteFile(file, []byte(strconv.Itoa(*p.spec.OOMScoreAdj)), 0); err != nil {
		p.u.g.o.Log.WithField("unit", p.u.Name).WithError(err).Debug("set oom score")
	}
}

func (p *process) pid() int                      { return p.cmd.Process.Pid }
func (p *process) gone() <-chan struct{}         { return p.exited }
func (p *process) saidReady() <-chan struct{}    { return nil }
func (p *process) ending() (string, bool, error) { return p.how, p.well, p.left }

// wait learns of the end of the process, removes what it left, and only then reaps it.
func (p *process) wait() {
	defer close(p.exited)
	awaitZombie(p.pid())
	if !p.u.KeepChildren {
		p.left = p.killRest()
	}
	p.mu.Lock()
	err := p.cmd.Wait()
	p.reaped = true
	p.mu.Unlock()
	p.how, p.well = ending(p.cmd.ProcessState, err)

	if within(p.pumped, drainWait) || p.u.KeepChildren {
		return // Kept children may go on writing; the pump stays until the unit ends.
	}
	_ = p.output.SetReadDeadline(time.Unix(1, 0)) // a pipe that is closed already needs none
	<-p.pumped
}

// awaitZombie blocks until the child is dead and leaves it unreaped, so that its number, and that of its process group,
// stay taken (WNOWAIT, wait(2)).
func awaitZombie(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// ending tells how a process ended.
func ending(state *os.ProcessState, err error) (how string, well bool) {
	if state == nil {
		return fmt.Sprintf("wait for process: %v", err), false
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return fmt.Sprintf("exited with status %d", state.ExitCode()), state.ExitCode() == 0
	}
	name := unix.SignalName(status.Signal())
	if name == "" {
		name = "signal " + strconv.Itoa(int(status.Signal()))
	}
	return "killed by " + name, false
}

// signal sends sig to the process group, or to the main process alone if its children are not ours to end.
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
	// Refused only for a process that changed its user; the wait that follows tells.
	_ = syscall.Kill(to, sig)
}

// stop asks, waits, kills, and tells when that was not enough.
func (p *process) stop() (string, error) {
	u := p.u
	p.signal(u.StopSignal)
	if within(p.exited, u.StopGrace) {
		return "", p.left
	}
	how := fmt.Sprintf("did not end within %v of %s, killed", u.StopGrace, unix.SignalName(u.StopSignal))
	p.signal(syscall.SIGKILL)
	// Once for the process to die, once for its rest.
	if within(p.exited, 2*u.g.o.KillWait+drainWait) {
		return how, p.left
	}
	return how, fmt.Errorf("process %d is still there %v after SIGKILL", p.pid(), u.g.o.KillWait)
}
