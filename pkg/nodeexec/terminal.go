package nodeexec

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// drainTime is how long output is still read from a terminal that something holds open after its program has ended.
const drainTime = 500 * time.Millisecond

// runTerminal makes a terminal on the host's devpts, gives its far end to the program and relays between its near end
// and the caller's terminal.
func runTerminal(c *net.UnixConn, req Request) (code int, err error) {
	near, far, err := openPty()
	if err != nil {
		return 1, err
	}
	defer near.Close()
	in, out := req.Stdin, req.Stdout
	w := watchTerminal(c, func() { resize(near, out, in) }, req.ForwardSignals)
	defer w.stop()
	err = send(c, req, []*os.File{far, far, far})
	if cerr := far.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return 1, err
	}
	restore, err := rawMode(in)
	if err != nil {
		return 1, err
	}
	defer restore()
	w.start()

	var relay sync.WaitGroup
	cancelIn := relayIn(&relay, near, in)
	drained := relayOut(&relay, near, out)
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

// relayOut copies the terminal's output to out until its far end is closed, which reads as EIO (pty(7)), or the deadline
// of near passes. Output that out does not take is dropped: the terminal must be emptied or the program would block.
func relayOut(wg *sync.WaitGroup, near, out *os.File) <-chan struct{} {
	drained := make(chan struct{})
	wg.Go(func() {
		defer close(drained)
		buf := make([]byte, relayBuffer)
		for {
			n, err := near.Read(buf)
			if n > 0 && out != nil {
				if _, werr := out.Write(buf[:n]); werr != nil {
					out = nil
				}
			}
			if err != nil {
				return
			}
		}
	})
	return drained
}

// relayIn copies in to the terminal until the returned function is called. in is read only when it has something, so
// that nothing of what comes after the program's end is taken from the caller's terminal.
func relayIn(wg *sync.WaitGroup, near, in *os.File) (cancel func()) {
	if in == nil {
		return func() {}
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return func() {}
	}
	var ended sync.WaitGroup
	ended.Add(1)
	wg.Go(func() {
		defer ended.Done()
		copyPolled(near, in, wake)
	})
	return func() {
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		ended.Wait()
		_ = unix.Close(wake)
	}
}

const relayBuffer = 32 << 10

func copyPolled(near, in *os.File, wake int) {
	fd, err := rawFD(in)
	if err != nil {
		return
	}
	buf := make([]byte, relayBuffer)
	for {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return
		}
		if ready[1].Revents != 0 {
			return
		}
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return
		case n == 0:
			// What a user's end of input looks like to a terminal: VEOF (termios(3)).
			_, _ = near.Write([]byte{4})
			return
		}
		if _, err := near.Write(buf[:n]); err != nil {
			return
		}
	}
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

// openPty returns both ends of a new terminal. near is in non-blocking mode, so that reading it can be given a deadline.
func openPty() (near, far *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	near = os.NewFile(uintptr(fd), "/dev/ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("unlock terminal: %w", err), near.Close())
	}
	// TIOCGPTPEER opens the far end without its name, which need not be valid here (ioctl_tty(2)).
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, nil, errors.Join(fmt.Errorf("open terminal: %w", errno), near.Close())
	}
	return near, os.NewFile(peer, "terminal"), nil
}

// rawMode puts in, if it is a terminal, in raw mode. restore may be called more than once.
func rawMode(in *os.File) (restore func(), err error) {
	if in == nil {
		return func() {}, nil
	}
	fd, err := rawFD(in)
	if err != nil || !term.IsTerminal(fd) {
		return func() {}, nil // a pipe is relayed as it is
	}
	was, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("put terminal in raw mode: %w", err)
	}
	var once sync.Once
	return func() { once.Do(func() { _ = term.Restore(fd, was) }) }, nil
}

// resize gives the terminal the size of the first of the files that is a terminal.
func resize(near *os.File, like ...*os.File) {
	for _, f := range like {
		if f == nil {
			continue
		}
		fd, err := rawFD(f)
		if err != nil {
			continue
		}
		if ws, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
			if nearFD, err := rawFD(near); err == nil {
				_ = unix.IoctlSetWinsize(nearFD, unix.TIOCSWINSZ, ws)
			}
			return
		}
	}
}

// rawFD returns the descriptor of f without the change to blocking mode that Fd makes, which would end deadlines and
// belongs to whoever shares the descriptor.
func rawFD(f *os.File) (int, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	err = rc.Control(func(u uintptr) { fd = int(u) })
	return fd, err
}
