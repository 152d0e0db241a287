// Package terminal makes pseudo terminals and copies between one and the terminal of the caller, for a program that must
// not get the caller's own.
//
// Runs in: parent.
package terminal

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Open returns both ends of a new pseudo terminal. near is in non-blocking mode, so that reads and writes of it can have a
// deadline. far is what the program gets.
func Open() (near, far *os.File, err error) {
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

// Is reports whether f is a terminal. f may be nil.
func Is(f *os.File) bool {
	if f == nil {
		return false
	}
	fd, err := rawFD(f)
	return err == nil && term.IsTerminal(fd)
}

// Raw puts in, if it is a terminal, in raw mode. restore may be called more than once. Anything else is left as it is.
func Raw(in *os.File) (restore func(), err error) {
	if !Is(in) {
		return func() {}, nil
	}
	fd, err := rawFD(in)
	if err != nil {
		return nil, err
	}
	was, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("put terminal in raw mode: %w", err)
	}
	var once sync.Once
	return func() { once.Do(func() { _ = term.Restore(fd, was) }) }, nil
}

// Resize gives near the size of the first of the files that is a terminal.
func Resize(near *os.File, like ...*os.File) {
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

// Background reports whether f is a terminal on which another process group of the caller's session is in the foreground:
// reading from it or changing its mode would stop the caller (termios(3), job control).
func Background(f *os.File) bool {
	fd, err := rawFD(f)
	if err != nil {
		return false
	}
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group != unix.Getpgrp()
}

// rawFD returns the descriptor of f without the change to blocking mode that Fd makes, which would end deadlines and
// would affect every process that shares the descriptor.
func rawFD(f *os.File) (int, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	err = rc.Control(func(u uintptr) { fd = int(u) })
	return fd, err
}
