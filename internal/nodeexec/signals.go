package nodeexec

import (
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalBacklog is the number of signals that can be queued for forwarding; further signals are dropped.
const signalBacklog = 16

// forwardSignals starts to catch signals of this process. Call start after the request was sent; it forwards the signals that have arrived
// and further ones to the program. stop ends the forwarding.
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
					// On an error, the program or the service has ended, which the reader of replies reports.
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

// suspend stops the program and then this process, when the user presses the suspend key of the terminal. The program gets SIGSTOP,
// because SIGTSTP has no effect on an orphaned process group (setpgid(2)). The SIGCONT that continues this process is forwarded like
// other signals.
func suspend(c *net.UnixConn) {
	if writeFrame(c, control{Signal: int(unix.SIGSTOP)}) == nil {
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	}
}
