// Package terminal creates pseudoterminals and copies data between a pseudoterminal and the caller's terminal, for programs that must not have
// access to the caller's terminal.
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

// Open returns both sides of a new pseudoterminal. pty is in non-blocking mode, so that it supports deadlines. tty is the side for the program.
func Open() (pty, tty *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	pty = os.NewFile(uintptr(fd), "/dev/ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("unlock terminal: %w", err), pty.Close())
	}
	// TIOCGPTPEER opens the tty without its name, which may not be valid in this mount namespace (ioctl_tty(2)).
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, nil, errors.Join(fmt.Errorf("open terminal: %w", errno), pty.Close())
	}
	return pty, os.NewFile(peer, "terminal"), nil
}

// Is reports whether f is a terminal. f may be nil.
func Is(f *os.File) bool {
	if f == nil {
		return false
	}
	fd, err := rawFD(f)
	return err == nil && term.IsTerminal(fd)
}

// Raw sets in to raw mode if it is a terminal, and does nothing otherwise. restore restores the mode; it may be called more than once.
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
		return nil, fmt.Errorf("set terminal to raw mode: %w", err)
	}
	var once sync.Once
	return func() { once.Do(func() { _ = term.Restore(fd, was) }) }, nil
}

// Resize sets the size of pty to that of the first terminal among the files like.
func Resize(pty *os.File, like ...*os.File) {
	for _, f := range like {
		if f == nil {
			continue
		}
		fd, err := rawFD(f)
		if err != nil {
			continue
		}
		if ws, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
			if ptyFD, err := rawFD(pty); err == nil {
				_ = unix.IoctlSetWinsize(ptyFD, unix.TIOCSWINSZ, ws)
			}
			return
		}
	}
}

// Background reports whether f is the terminal of this session and another process group is in its foreground. In this case, reading from f or
// changing its mode would stop this process (termios(3), job control).
func Background(f *os.File) bool {
	fd, err := rawFD(f)
	if err != nil {
		return false
	}
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group != unix.Getpgrp()
}

// rawFD returns the descriptor of f. Unlike Fd, it does not set the descriptor to blocking mode, which would disable deadlines and affect all
// processes that share the descriptor.
func rawFD(f *os.File) (int, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	err = rc.Control(func(u uintptr) { fd = int(u) })
	return fd, err
}
