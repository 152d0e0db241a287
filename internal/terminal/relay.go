package terminal

import (
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const relayBuffer = 32 << 10

// backgroundPoll is the interval in milliseconds at which a relay in the background checks whether it is in the foreground.
const backgroundPoll = 200

// CopyOut starts to copy the output of the program from pty to out. It ends when the terminal is closed, which pty reports as EIO (pty(7)), or
// at the read deadline of pty. If writing to out fails, it discards the output so that the program does not block. The returned channel is
// closed at the end.
func CopyOut(wg *sync.WaitGroup, pty, out *os.File) <-chan struct{} {
	drained := make(chan struct{})
	wg.Go(func() {
		defer close(drained)
		buf := make([]byte, relayBuffer)
		for {
			n, err := pty.Read(buf)
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

// CopyIn starts to copy in to pty until the returned function is called. It calls end at the end of in. It reads in only while in has data
// and, if in is a terminal, while this process is in the foreground, so that it does not read input for another program.
func CopyIn(wg *sync.WaitGroup, pty io.Writer, in *os.File, end func()) (cancel func()) {
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
		copyPolled(pty, in, wake, end)
	})
	return func() {
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		ended.Wait()
		_ = unix.Close(wake)
	}
}

// EndOfInput returns a function for the argument end of CopyIn. It writes VEOF to pty, like a user who ends the input (termios(3)).
func EndOfInput(pty *os.File) func() {
	return func() { _, _ = pty.Write([]byte{4}) }
}

func copyPolled(pty io.Writer, in *os.File, wake int, end func()) {
	fd, err := rawFD(in)
	if err != nil {
		return
	}
	buf := make([]byte, relayBuffer)
	for {
		ready := []unix.PollFd{{Fd: int32(wake), Events: unix.POLLIN}, {Fd: int32(fd), Events: unix.POLLIN}}
		wait := -1
		if Background(in) {
			ready, wait = ready[:1], backgroundPoll
		}
		n, err := unix.Poll(ready, wait)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return
		case err != nil || n == 0:
			continue
		case ready[0].Revents != 0:
			return
		case Background(in): // changed during the poll
			continue
		}
		n, err = unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EIO) && Background(in):
			continue
		case err != nil:
			return
		case n == 0:
			end()
			return
		}
		if _, err := pty.Write(buf[:n]); err != nil {
			return
		}
	}
}
