// Package descriptors prevents a process from passing open files, its own or inherited ones, to other programs.
//
// Runs in: parent.
package descriptors

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// first is the lowest descriptor after standard input, output and error, which this package does not change.
const first = 3

// CloseOnExec sets all descriptors except the first three to close on exec.
func CloseOnExec() error {
	err := unix.CloseRange(first, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	// close_range(2) exists since Linux 5.9, its flag since 5.11, and seccomp filters of containers may forbid it.
	open, err := list()
	if err != nil {
		return err
	}
	for _, fd := range open {
		unix.CloseOnExec(fd)
	}
	return nil
}

// CloseInherited closes all inherited descriptors except the first three and those in keep. It closes descriptors that are not close-on-exec,
// because Go opens its own descriptors, including those of its runtime, close-on-exec.
func CloseInherited(keep ...int) error {
	open, err := list()
	if err != nil {
		return err
	}
	for _, fd := range open {
		if slices.Contains(keep, fd) {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 { // closed meanwhile, or not inherited
			continue
		}
		// An error means that earlier data was not written; the descriptor is closed in any case (close(2)).
		_ = unix.Close(fd)
	}
	return nil
}

// Open returns the number of open descriptors.
func Open() (int, error) {
	others, err := list()
	return len(others) + first, err
}

// list returns the open descriptors except the first three.
func list() ([]int, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, fmt.Errorf("list open files: %w", err)
	}
	var open []int
	var faults []error
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			faults = append(faults, err)
		} else if fd >= first {
			open = append(open, fd)
		}
	}
	return open, errors.Join(faults...)
}
