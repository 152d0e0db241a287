package supervisor

import (
	"runtime"
	"syscall"
)

// starter makes all processes of a group from one thread.
//
// The death signal of a process (PR_SET_PDEATHSIG, prctl(2)) is sent when the *thread* that made it ends, not the
// program. The Go runtime ends a thread when a goroutine locked to it returns, and any goroutine may have been moved to such
// a thread before. So the processes are made by one goroutine that is locked to its thread, which nobody else can then be
// moved to, and that stays until the last process is gone.
type starter struct {
	jobs chan func()
}

func newStarter() *starter { return &starter{jobs: make(chan func())} }

// serve works until end is called.
func (s *starter) serve() {
	runtime.LockOSThread()
	// Given back, not ended with the goroutine: a thread less to make for the runtime.
	defer runtime.UnlockOSThread()
	for job := range s.jobs {
		job()
	}
}

// do runs start on the thread and returns its error. It cannot be cancelled: a start takes a moment, and what was started
// has to be known to be ended.
func (s *starter) do(start func() error) error {
	result := make(chan error, 1)
	s.jobs <- func() { result <- start() }
	return <-result
}

func (s *starter) end() { close(s.jobs) }

// attributes returns what every process is born with: a process group of its own and the death signal; and the cgroup
// whose descriptor is given, if it is not negative.
func attributes(cgroup int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Setpgid:     true,
		Pdeathsig:   syscall.SIGKILL,
		UseCgroupFD: cgroup >= 0,
		CgroupFD:    max(cgroup, 0),
	}
}
