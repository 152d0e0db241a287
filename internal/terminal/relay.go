package terminal

import (
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const relayBuffer = 32 << 10

// backgroundPoll is how often, in milliseconds, a relay in the background checks whether it is in the foreground again.
const backgroundPoll = 200

// CopyOut copies what the program writes, read from near, to out until its end, which a terminal reports as EIO (pty(7)),
// or until the read deadline of near passes. Output that out does not take is dropped, because the program would block
// otherwise. The returned channel is closed at the end.
func CopyOut(wg *sync.WaitGroup, near, out *os.File) <-chan struct{} {
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

// CopyIn copies in to near until the returned function is called, and calls end at the end of in. in is read only while it
// has data and, if it is a terminal, while the caller is in the foreground, so that no input is taken that is meant for
// another program.
func CopyIn(wg *sync.WaitGroup, near io.Writer, in *os.File, end func()) (cancel func()) {
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
		copyPolled(near, in, wake, end)
	})
	return func() {
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		ended.Wait()
		_ = unix.Close(wake)
	}
}

// EndOfInput returns what CopyIn calls at the end of its input where near is a terminal: it sends VEOF, as a user does who
// ends the input (termios(3)).
func EndOfInput(near *os.File) func() {
	return func() { _, _ = near.Write([]byte{4}) }
}

func copyPolled(near io.Writer, in *os.File, wake int, end func()) {
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
		case Background(in): // since the poll
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
		if _, err := near.Write(buf[:n]); err != nil {
			return
		}
	}
}
