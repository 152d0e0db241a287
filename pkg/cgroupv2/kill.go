package cgroupv2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// Kill sends SIGKILL to every process in the cgroup at dir and below, and does not wait. A missing cgroup is not an error. Do not create
// another process in dir afterwards; see Empty. On kernels before 5.14, which have no cgroup.kill, processes that are forked meanwhile may
// be missed.
//
// Runs in: either.
func Kill(dir string) error {
	if write(dir, killFile, "1") == nil {
		return nil
	}
	return signalAll(dir, unix.SIGKILL)
}

// Empty kills all processes in the cgroup at dir and below, including those that are forked meanwhile, and returns when none is left or
// ctx ends. A missing cgroup is empty. The calling process must not be inside. Other processes can be created in dir afterwards.
//
// For this reason Empty does not use cgroup.kill. Since Linux 6.14, and in the stable kernels with the backport of "cgroup: fix race
// between fork and cgroup.kill", a child cloned into a cgroup (CLONE_INTO_CGROUP) whose cgroup.kill was ever written is killed at once. The
// kernel counts the writes: it records the count of the parent's cgroup at the clone, and compares it with the count of dir afterwards
// (cgroup_css_set_fork and cgroup_post_fork in kernel/cgroup/cgroup.c). Seen on 6.18. Once all supported kernels are fixed, Kill can be
// used instead.
//
// Runs in: either.
func Empty(ctx context.Context, dir string) error {
	if err := killAll(ctx, dir, signalKill); err != nil {
		return fmt.Errorf("processes remain after SIGKILL: %w", describeRemaining(dir, err))
	}
	return nil
}

func signalKill(dir string) error { return signalAll(dir, unix.SIGKILL) }

// Populated reports whether a process is in the cgroup at dir or below. A missing cgroup is empty.
//
// Runs in: either.
func Populated(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, eventsFile))
	if err != nil {
		return false, ignoreGone(err)
	}
	defer func() { _ = f.Close() }() // read only
	return populated(f)
}

// populated reports whether a process is in a cgroup or below. events is its open cgroup.events file.
func populated(events *os.File) (bool, error) {
	buf := make([]byte, 256) // a few short lines
	n, err := unix.Pread(int(events.Fd()), buf, 0)
	if err != nil {
		return false, ignoreGone(err)
	}
	for line := range bytes.Lines(buf[:n]) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "populated "); ok {
			return value != "0", nil
		}
	}
	return false, fmt.Errorf("%s has no field populated", events.Name())
}

const (
	// pollSlice is the interval at which a wait for the kernel checks its context.
	pollSlice = 50 * time.Millisecond
	// killPause is the time after which killed processes that remain are killed again, together with those that were forked meanwhile.
	killPause = 20 * time.Millisecond
)

// waitEmpty waits until no process is left in dir and below, or ctx ends.
func waitEmpty(ctx context.Context, dir string) error {
	return await(ctx, dir, pollSlice, func() error { return nil })
}

// killAll calls kill until no process is left in dir and below, or ctx ends.
func killAll(ctx context.Context, dir string, kill func(dir string) error) error {
	return await(ctx, dir, killPause, func() error { return kill(dir) })
}

// await waits until no process is left in dir and below, or ctx ends. It calls act at once, and again in each interval. The kernel
// signals POLLPRI on cgroup.events when "populated" changes (cgroup-v2.rst, "[Un]populated Notification").
func await(ctx context.Context, dir string, interval time.Duration, act func() error) error {
	f, err := os.Open(filepath.Join(dir, eventsFile))
	if err != nil {
		return ignoreGone(err)
	}
	defer func() { _ = f.Close() }() // read only
	for {
		if full, err := populated(f); err != nil || !full {
			return err
		}
		failed := act()
		if err := ctx.Err(); err != nil {
			return errors.Join(err, failed)
		}
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(fds, int(interval.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// signalAll signals every process in dir and below once, except the calling one.
func signalAll(dir string, sig unix.Signal) error {
	return eachDir(dir, func(d string) error { return signalDirect(d, sig) })
}

// maxHandles is the maximum number of pidfds that are open at the same time.
const maxHandles = 128

// signalDirect signals the processes directly in dir. Because a process ID may be reused at any time, it opens a pidfd for
// each process, reads the list again, and signals those that are still listed. A listed process is then the process of the
// pidfd, or that process has ended and the signal has no effect.
func signalDirect(dir string, sig unix.Signal) error {
	pids, err := readPids(dir)
	if err != nil {
		return ignoreUnlisted(err)
	}
	var errs []error
	for some := range slices.Chunk(pids, maxHandles) {
		errs = append(errs, signalListed(dir, some, sig))
	}
	return errors.Join(errs...)
}

func signalListed(dir string, pids []int, sig unix.Signal) error {
	handles := make(map[int]proc.Handle, len(pids))
	defer func() {
		for _, h := range handles {
			h.Close()
		}
	}()
	var errs []error
	for _, pid := range pids {
		if pid == 0 || pid == os.Getpid() { // 0 is not visible in this pid namespace
			continue
		}
		h, err := proc.Open(pid)
		if err == nil {
			handles[pid] = h
		} else if !proc.Ended(err) {
			errs = append(errs, err)
		}
	}
	listed, err := readPids(dir)
	if err != nil {
		return ignoreUnlisted(err)
	}
	for pid, h := range handles {
		if !slices.Contains(listed, pid) {
			continue
		}
		if err := h.Signal(sig); err != nil {
			errs = append(errs, fmt.Errorf("signal process %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

// ignoreUnlisted is like ignoreGone and also ignores the error of a threaded cgroup, whose processes are listed in the
// cgroup above it.
func ignoreUnlisted(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return ignoreGone(err)
}

func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// describeRemaining returns cause together with the processes that remain in dir and below.
func describeRemaining(dir string, cause error) error {
	var left []string
	_ = eachDir(dir, func(d string) error {
		pids, _ := readPids(d)
		for _, pid := range pids {
			name, _ := proc.Host.Name(pid)
			left = append(left, fmt.Sprintf("%d (%s) in %s", pid, name, d))
		}
		return nil
	})
	if len(left) == 0 {
		return fmt.Errorf("%s: %w", dir, cause)
	}
	return fmt.Errorf("%s: processes are left: %s: %w", dir, strings.Join(left, ", "), cause)
}
