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

// drainTime is how long output is still read from a terminal that something holds open after its program has ended.
const drainTime = 500 * time.Millisecond

// runTerminal makes a terminal on the host's devpts, gives its far end to the program and relays between its near end
// and the caller's terminal.
func runTerminal(c *net.UnixConn, req Request) (code int, err error) {
	near, far, err := terminal.Open()
	if err != nil {
		return 1, err
	}
	defer near.Close()
	in, out := req.Stdin, req.Stdout
	w := watchTerminal(c, func() { terminal.Resize(near, out, in) }, req.ForwardSignals)
	defer w.stop()
	err = send(c, req, []*os.File{far, far, far})
	if cerr := far.Close(); err == nil {
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
	cancelIn := terminal.CopyIn(&relay, near, in, terminal.EndOfInput(near))
	drained := terminal.CopyOut(&relay, near, out)
	code, err = await(c, req.Argv[0])
	// The near end is in the poller, so deadlines cannot be refused. Input that the program did not take is dropped.
	_ = near.SetWriteDeadline(time.Now())
	cancelIn()
	_ = near.SetReadDeadline(time.Now().Add(drainTime))
	<-drained
	relay.Wait()
	w.stop()
	if sig := w.hungUp(); sig != 0 {
		return ExitSignalBase + int(sig), nil
	}
	return code, err
}

// terminalWatch keeps the terminal's size right and, where asked, handles the signals that reach the caller from
// elsewhere than its keyboard. TERM and HUP hang up: the program's shell would ignore TERM.
type terminalWatch struct {
	c    *net.UnixConn
	size func()
	ch   chan os.Signal
	by   atomic.Int64
	wg   sync.WaitGroup
	once sync.Once
}

// watchTerminal catches signals from now on and sets the size once. They take effect from start on.
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

// stop may be called more than once.
func (w *terminalWatch) stop() {
	w.once.Do(func() {
		signal.Stop(w.ch)
		close(w.ch)
		w.wg.Wait()
	})
}

// hungUp is the signal that ended the connection, 0 without one.
func (w *terminalWatch) hungUp() syscall.Signal { return syscall.Signal(w.by.Load()) }
