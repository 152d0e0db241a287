// Package descriptors keeps open files that a process inherited, or that it holds itself, from processes that must not get
// them.
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

// first is the lowest descriptor behind standard input, output and error, which are always left alone.
const first = 3

// CloseOnExec keeps every descriptor of this process but the first three from the program that is executed next.
func CloseOnExec() error {
	err := unix.CloseRange(first, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	// The system call is of Linux 5.9, its flag of 5.11, and containers may forbid what they do not know.
	open, err := list()
	if err != nil {
		return err
	}
	for _, fd := range open {
		unix.CloseOnExec(fd)
	}
	return nil
}

// CloseInherited closes every descriptor that this program has inherited but the first three and those in keep. A
// descriptor was inherited if it stays open at execve(2): Go opens its own, also those of its runtime, close-on-exec.
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
		if err != nil || flags&unix.FD_CLOEXEC != 0 { // closed since it was listed, or not inherited
			continue
		}
		// An error is about data that was not written before; the descriptor is closed in any case (close(2)).
		_ = unix.Close(fd)
	}
	return nil
}

// list returns the open descriptors from the fourth on.
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
