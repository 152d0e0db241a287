package supervisor

import (
	"runtime"
	"syscall"
)

// starter creates all processes of a group from one thread.
//
// The parent death signal of a process (PR_SET_PDEATHSIG, prctl(2)) is sent when the *thread* that created it ends, not
// the program. The Go runtime ends a thread when a goroutine locked to it returns, and any goroutine may have run on such a
// thread before. Therefore one goroutine, locked to its thread, creates all processes. No other goroutine can run on that
// thread, and it lives until the last process has ended.
type starter struct {
	jobs chan func()
}

func newStarter() *starter { return &starter{jobs: make(chan func())} }

// serve runs the jobs until end is called.
func (s *starter) serve() {
	runtime.LockOSThread()
	// Unlock the thread, so that the runtime can reuse it.
	defer runtime.UnlockOSThread()
	for job := range s.jobs {
		job()
	}
}

// do runs start on the thread and returns its error. It cannot be cancelled: a start is short, and the caller must know
// whether a process was started in order to stop it.
func (s *starter) do(start func() error) error {
	result := make(chan error, 1)
	s.jobs <- func() { result <- start() }
	return <-result
}

func (s *starter) end() { close(s.jobs) }

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
