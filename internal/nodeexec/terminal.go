package nodeexec

import (
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/terminal"
)

// drainTime is how long output is read from the terminal after the program has ended, if other processes have the terminal open.
const drainTime = 500 * time.Millisecond

// runTerminal creates a pseudoterminal on the host's devpts, passes its tty to the program, and relays data between its pty side and the
// caller's terminal.
func runTerminal(c *net.UnixConn, req Request) (code int, err error) {
	pty, tty, err := terminal.Open()
	if err != nil {
		return 1, err
	}
	defer pty.Close()
	in, out := req.Stdin, req.Stdout
	w := watchTerminal(c, func() { terminal.Resize(pty, out, in) }, req.ForwardSignals)
	defer w.stop()
	err = send(c, req, []*os.File{tty, tty, tty})
	if cerr := tty.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return 1, err
	}
	restore, err := terminal.Raw(in)
	if err != nil {
		return 1, err
	}
	defer restore()
	w.start()

	var relay sync.WaitGroup
	cancelIn := terminal.CopyIn(&relay, pty, in, terminal.EndOfInput(pty))
	drained := terminal.CopyOut(&relay, pty, out)
	code, err = waitExit(c, req.Argv[0])
	// The pty supports deadlines, so these calls cannot fail. Input that the program has not read is dropped.
	_ = pty.SetWriteDeadline(time.Now())
	cancelIn()
	_ = pty.SetReadDeadline(time.Now().Add(drainTime))
	<-drained
	relay.Wait()
	w.stop()
	if sig := w.hungUp(); sig != 0 {
		return ExitSignalBase + int(sig), nil
	}
	return code, err
}

// terminalWatch updates the terminal's size and, if forward is set, handles signals that other processes send to this process. TERM and
// HUP close the connection, because an interactive shell would ignore TERM.
type terminalWatch struct {
	c    *net.UnixConn
	size func()
	ch   chan os.Signal
	by   atomic.Int64
	wg   sync.WaitGroup
	once sync.Once
}

// watchTerminal starts to catch signals and sets the size once. Signals are handled after start was called.
func watchTerminal(c *net.UnixConn, size func(), forward bool) *terminalWatch {
	w := &terminalWatch{c: c, size: size, ch: make(chan os.Signal, signalBacklog)}
	signal.Notify(w.ch, unix.SIGWINCH)
	if forward {
		signal.Notify(w.ch, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGCONT)
	}
	size()
	return w
}

func (w *terminalWatch) start() {
	w.wg.Go(func() {
		for s := range w.ch {
			switch sig := s.(syscall.Signal); sig {
			case unix.SIGWINCH, unix.SIGCONT:
				w.size()
			case unix.SIGTERM, unix.SIGHUP:
				w.by.Store(int64(sig))
				_ = w.c.Close()
			default:
				_ = writeFrame(w.c, control{Signal: int(sig)})
			}
		}
	})
}

// stop ends the handling of signals. It may be called more than once.
func (w *terminalWatch) stop() {
	w.once.Do(func() {
		signal.Stop(w.ch)
		close(w.ch)
		w.wg.Wait()
	})
}

// hungUp returns the signal that closed the connection, or 0.
func (w *terminalWatch) hungUp() syscall.Signal { return syscall.Signal(w.by.Load()) }
