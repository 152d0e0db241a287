package main

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// keys reads single keys from a terminal. Ctrl-C still interrupts.
type keys struct {
	fd    int
	saved *unix.Termios // nil if it is not a terminal
}

// openKeys turns off line buffering and echo of the terminal f. If f is not a terminal, keys reads nothing.
func openKeys(f *os.File) *keys {
	k := &keys{fd: -1}
	if !isTerminal(f) {
		return k
	}
	fd := int(f.Fd())
	saved, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return k
	}
	now := *saved
	now.Lflag &^= unix.ICANON | unix.ECHO
	now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 1, 0
	if unix.IoctlSetTermios(fd, unix.TCSETS, &now) != nil {
		return k
	}
	k.fd, k.saved = fd, saved
	return k
}

// close restores the settings of the terminal.
func (k *keys) close() {
	if k.saved != nil {
		_ = unix.IoctlSetTermios(k.fd, unix.TCSETS, k.saved) // the terminal may be gone
	}
}

// keyPoll is the longest time until a key or the end of ctx is noticed.
const keyPoll = 100 * time.Millisecond

// wait waits for d, or until ctx ends or q is pressed. quit is true in the latter cases.
func (k *keys) wait(ctx context.Context, d time.Duration) (quit bool, err error) {
	if k.saved == nil {
		select {
		case <-ctx.Done():
			return true, nil
		case <-time.After(d):
			return false, nil
		}
	}
	for end := time.Now().Add(d); ; {
		left := time.Until(end)
		if ctx.Err() != nil || left <= 0 {
			return ctx.Err() != nil, nil
		}
		fds := []unix.PollFd{{Fd: int32(k.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(min(left, keyPoll).Milliseconds(), 1)))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return true, err
		case n == 0:
			continue
		}
		var b [1]byte
		if m, err := unix.Read(k.fd, b[:]); err != nil || m == 0 {
			return true, nil // hung up
		}
		if b[0] == 'q' || b[0] == 'Q' {
			return true, nil
		}
	}
}

// terminalHeight returns the height of the terminal in lines, or 0 if f is not a terminal.
func terminalHeight(f *os.File) int {
	if !isTerminal(f) {
		return 0
	}
	_, h, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return h
}
