package proc

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

// Starter starts processes from one thread.
//
// The parent death signal of a process (PR_SET_PDEATHSIG, prctl(2)) is sent when the *thread* that created it ends, not the program. The Go
// runtime ends a thread when a goroutine locked to it returns, and any goroutine may have run on such a thread before. Therefore one
// goroutine, locked to its thread, creates all processes. No other goroutine can run on that thread until Stop.
type Starter struct {
	jobs chan func()
	done chan struct{}
}

// NewStarter returns a Starter. The caller must call Stop.
func NewStarter() *Starter {
	s := &Starter{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread() // so that the runtime can reuse the thread
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

// Do runs start on the thread and returns its error. It cannot be canceled: a start is short, and the caller must know whether a process was
// started in order to stop it.
func (s *Starter) Do(start func() error) error {
	result := make(chan error, 1)
	s.jobs <- func() { result <- start() }
	return <-result
}

// Stop ends the goroutine, and waits for that. Do must not be called afterwards.
func (s *Starter) Stop() {
	close(s.jobs)
	<-s.done
}

// AwaitExit waits until a child has ended and does not reap it (WNOWAIT, wait(2)), so that the kernel does not reuse its ID, which may also
// be the ID of its process group.
func AwaitExit(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}
