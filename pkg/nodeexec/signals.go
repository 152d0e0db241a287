package nodeexec

import (
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalBacklog is how many signals may wait to be passed on; more are dropped, as the kernel does with equal ones.
const signalBacklog = 16

// forwardSignals catches the caller's signals from now on. start, to be called once the request was sent, passes those
// that came and come on to the program; stop ends it.
func forwardSignals(c *net.UnixConn) (start, stop func()) {
	ch := make(chan os.Signal, signalBacklog)
	signal.Notify(ch, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT)
	var wg sync.WaitGroup
	start = func() {
		wg.Go(func() {
			for s := range ch {
				if sig, ok := s.(syscall.Signal); ok && sig == unix.SIGTSTP {
					suspend(c)
				} else if ok {
					// The program has ended or the service is gone: the reader of replies tells.
					_ = writeFrame(c, control{Signal: int(sig)})
				}
			}
		})
	}
	return start, func() {
		signal.Stop(ch)
		close(ch)
		wg.Wait()
	}
}

// suspend stops the program and then the caller, as a terminal's suspend key asks. The program gets STOP, since TSTP does
// nothing to a process group whose session has no job-control shell (setpgid(2), orphaned process groups). The CONT that
// wakes the caller is passed on like any other.
func suspend(c *net.UnixConn) {
	if writeFrame(c, control{Signal: int(unix.SIGSTOP)}) == nil {
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	}
}
