package proc

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Handle refers to a process by a pidfd. Unlike its ID, a handle never refers to another process.
//
// If the kernel or a seccomp filter refuses pidfds (the filters of older container engines do), the handle is the open directory of the
// process in /proc. It refers to that process only, too. But a signal is then sent by the ID, immediately after a check that the process
// still exists.
type Handle struct {
	fd  int
	pid int
	// dir is set if fd is the directory in /proc.
	dir bool
}

// Open returns a handle of a process. The error is unix.ESRCH if there is no such process. If the process is not a child of the caller,
// it may have ended and another process may have got the ID: compare again afterwards whatever has named the process.
func Open(pid int) (Handle, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		return Handle{fd: fd, pid: pid}, nil
	}
	if refused(err) {
		fd, open := unix.Open(Host.File(pid, ""), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		switch {
		case open == nil:
			return Handle{fd: fd, pid: pid, dir: true}, nil
		case Ended(open):
			err = unix.ESRCH
		default:
			err = errors.Join(err, fmt.Errorf("open /proc/%d: %w", pid, open))
		}
	}
	return Handle{}, fmt.Errorf("open pidfd of process %d: %w", pid, err)
}

// refused reports whether err means that the kernel does not have a system call, or that a seccomp filter does not allow it.
func refused(err error) bool { return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) }

// Signal sends a signal to the process. It does nothing if the process has ended.
func (h Handle) Signal(sig unix.Signal) error {
	err := unix.PidfdSendSignal(h.fd, sig, nil, 0) // accepts a directory in /proc too
	if h.dir && refused(err) {
		err = h.signalByID(sig)
	}
	if Ended(err) {
		return nil
	}
	return err
}

func (h Handle) signalByID(sig unix.Signal) error {
	if err := unix.Faccessat(h.fd, "stat", unix.F_OK, 0); err != nil { // the directory of an ended process is empty
		return err
	}
	return unix.Kill(h.pid, sig)
}

// Close closes the handle.
func (h Handle) Close() { _ = unix.Close(h.fd) }
