package relay

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// bufferSize is small because a buffer is held while the other side does not take its contents.
	bufferSize = 16 << 10
	// bulkAfter is how many full buffers in a row make a bulk transfer, which is worth a pipe.
	bulkAfter = 8
	// pipeSize is what a pipe is asked to hold; an account's pipes together have a limit (fs.pipe-user-pages-soft).
	pipeSize = 1 << 20
)

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// errBulk: much data comes, and the kernel may copy it.
var errBulk = errors.New("bulk transfer")

// direction is one of the two of a pair of connections.
type direction struct {
	in, out syscall.RawConn
	taken   func(bool)
	full    int // buffers that were full, in a row
}

// buffered copies through a buffer, which it holds only while there is data. It returns io.EOF, errBulk or another error.
func (d *direction) buffered() error {
	for d.full = 0; d.full < bulkAfter; {
		var buf *[bufferSize]byte
		n, err := wait(d.in.Read, func(fd int) (int, error) {
			buf = buffers.Get().(*[bufferSize]byte)
			n, err := unix.Read(fd, buf[:])
			if err != nil || n == 0 {
				buffers.Put(buf)
			}
			return n, err
		})
		if err != nil {
			return err
		}
		if n == 0 {
			return io.EOF
		}
		err = d.write(buf[:n])
		buffers.Put(buf)
		if err != nil {
			return err
		}
		if d.full++; n < bufferSize {
			d.full = 0
		}
	}
	return errBulk
}

func (d *direction) write(b []byte) error {
	for len(b) > 0 {
		n, err := d.send(func(fd int) (int, error) { return unix.SendmsgN(fd, b, nil, nil, unix.MSG_NOSIGNAL) })
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// send calls f until the outgoing socket takes something.
func (d *direction) send(f func(fd int) (int, error)) (int, error) {
	waited := false
	n, err := wait(d.out.Write, func(fd int) (int, error) {
		n, err := f(fd)
		if errors.Is(err, unix.EAGAIN) && !waited {
			waited = true
			d.taken(false)
		}
		return n, err
	})
	if waited && err == nil {
		d.taken(true)
	}
	return n, err
}

// wait calls f until the descriptor is ready for it.
func wait(ready func(func(fd uintptr) bool) error, f func(fd int) (int, error)) (int, error) {
	var n int
	var failed error
	err := ready(func(fd uintptr) bool {
		n, failed = f(int(fd))
		for errors.Is(failed, unix.EINTR) {
			n, failed = f(int(fd))
		}
		return !errors.Is(failed, unix.EAGAIN)
	})
	if err != nil {
		return 0, err
	}
	return n, os.NewSyscallError("copy", failed)
}

// spliced lets the kernel copy (splice(2)) until no more data is there at the moment. Without a pipe it does nothing. It
// returns io.EOF or another error.
func (d *direction) spliced(pipes *Pipes) error {
	p, ok := pipes.get()
	if !ok {
		return nil
	}
	defer pipes.put(p)
	const flags = unix.SPLICE_F_NONBLOCK | unix.SPLICE_F_MOVE
	for {
		dry := false
		held, err := wait(d.in.Read, func(fd int) (int, error) {
			n, err := unix.Splice(fd, nil, p.w, nil, pipeSize, flags)
			if errors.Is(err, unix.EAGAIN) {
				dry, err = true, nil
			}
			return int(n), err
		})
		switch {
		case err != nil || dry:
			return err
		case held == 0:
			return io.EOF
		}
		for held > 0 {
			n, err := d.send(func(fd int) (int, error) {
				n, err := unix.Splice(p.r, nil, fd, nil, held, flags)
				return int(n), err
			})
			if err != nil {
				return err
			}
			held -= n
		}
	}
}

// Pipes limits how many pipes are open at once for bulk transfers: two descriptors each. A nil Pipes has none.
type Pipes struct{ free chan struct{} }

// NewPipes allows most pipes.
func NewPipes(most int) *Pipes { return &Pipes{free: make(chan struct{}, most)} }

type pipe struct{ r, w int }

// get makes a pipe. Without one, because there are too many or the process has no descriptors left, data is copied through
// a buffer.
func (p *Pipes) get() (pipe, bool) {
	if p == nil {
		return pipe{}, false
	}
	select {
	case p.free <- struct{}{}:
	default:
		return pipe{}, false
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		<-p.free
		return pipe{}, false
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize) // a smaller one does too
	return pipe{r: fds[0], w: fds[1]}, true
}

func (p *Pipes) put(e pipe) {
	_, _ = unix.Close(e.r), unix.Close(e.w) // what is left in it cannot be delivered
	<-p.free
}
