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
	// bufferSize is small because a buffer stays in use until the other side accepts its contents.
	bufferSize = 16 << 10
	// bulkAfter is the number of consecutive full buffers after which a transfer is a bulk transfer, which uses a pipe.
	bulkAfter = 8
	// pipeSize is the requested capacity of a pipe, in bytes. The pipes of an account have a common limit
	// (fs.pipe-user-pages-soft).
	pipeSize = 1 << 20
)

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// errBulk means that much data is arriving, so that the kernel should copy it.
var errBulk = errors.New("bulk transfer")

// writeError is an error of the connection that is written to, not of the connection that is read.
type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

// direction is one direction of a pair of connections.
type direction struct {
	in, out  syscall.RawConn
	writable func(bool)
	full     int // consecutive full buffers
}

// copyBuffered copies through a buffer, which it uses only while there is data. It returns io.EOF, errBulk or another error.
func (d *direction) copyBuffered() error {
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

// send calls f until the outgoing socket accepts data. It returns a writeError.
func (d *direction) send(f func(fd int) (int, error)) (int, error) {
	waited := false
	n, err := wait(d.out.Write, func(fd int) (int, error) {
		n, err := f(fd)
		if errors.Is(err, unix.EAGAIN) && !waited {
			waited = true
			d.writable(false)
		}
		return n, err
	})
	switch {
	case err != nil:
		err = &writeError{err}
	case waited:
		d.writable(true)
	}
	return n, err
}

// wait waits for the descriptor and calls f until it does not return EAGAIN.
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

// copySpliced lets the kernel copy with splice(2) until no data is available, and returns nil then. Without a free pipe it does
// nothing and returns nil. It returns io.EOF at the end of the stream, or another error.
func (d *direction) copySpliced(pipes *Pipes) error {
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

// Pipes limits the number of pipes that are open for bulk transfers; each uses two descriptors. A nil Pipes allows none.
type Pipes struct{ free chan struct{} }

// NewPipes returns a Pipes that allows most pipes.
func NewPipes(most int) *Pipes { return &Pipes{free: make(chan struct{}, most)} }

type pipe struct{ r, w int }

// get creates a pipe. It returns false if there are too many pipes or no descriptors left; data is then copied through a
// buffer.
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
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize) // best effort: a smaller pipe works too
	return pipe{r: fds[0], w: fds[1]}, true
}

func (p *Pipes) put(e pipe) {
	_, _ = unix.Close(e.r), unix.Close(e.w) // remaining data cannot be delivered
	<-p.free
}
