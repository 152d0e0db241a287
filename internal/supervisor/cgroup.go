package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// killPause is how long to wait for killed processes before killing those that were forked meanwhile.
const killPause = 20 * time.Millisecond

// emptyCgroup kills all processes in the cgroup at dir and below, and returns when it is empty.
//
// It does not use cgroup.kill, because the next process of the unit is created in dir. Since Linux 6.14, and in the stable
// kernels with the backport of "cgroup: fix race between fork and cgroup.kill", a child cloned into a cgroup
// (CLONE_INTO_CGROUP) whose cgroup.kill was ever written is killed at once. The kernel counts the writes: it records the
// count of the parent's cgroup at the clone, and compares it with the count of dir afterwards (cgroup_css_set_fork and
// cgroup_post_fork in kernel/cgroup/cgroup.c). Seen on 6.18. Once all supported kernels are fixed, one write to
// cgroup.kill can replace the loop.
func emptyCgroup(dir string, deadline time.Time) error {
	events, err := os.Open(filepath.Join(dir, "cgroup.events"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // The cgroup was removed.
	}
	if err != nil {
		return fmt.Errorf("read cgroup: %w", err)
	}
	defer events.Close()
	for {
		full, err := populated(events)
		if err != nil || !full {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cgroup %s: processes remain after SIGKILL", dir)
		}
		if err := killMembers(dir); err != nil {
			return err
		}
		// The kernel reports POLLPRI when the cgroup becomes empty.
		wait := []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(wait, int(killPause.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for cgroup %s to empty: %w", dir, err)
		}
	}
}

// killMembers kills the current processes of the cgroup at dir and below.
func killMembers(dir string) error {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return killDirect(path)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // A cgroup was removed meanwhile.
	}
	return err
}

func killDirect(dir string) error {
	first, err := members(dir)
	if err != nil || len(first) == 0 {
		return err
	}
	handles := make(map[int]int, len(first))
	defer func() {
		for _, fd := range handles {
			_ = unix.Close(fd)
		}
	}()
	for pid := range first {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			handles[pid] = fd
		}
	}
	// Read the list again: a process ID in the second list still belongs to the process of the pidfd, or that process has
	// ended. So a foreign process that reused the ID before the pidfd was opened is never killed.
	second, err := members(dir)
	if err != nil {
		return err
	}
	for pid, fd := range handles {
		if second[pid] {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
	}
	return nil
}

// members returns the processes directly in the cgroup at dir.
func members(dir string) (map[int]bool, error) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // Removed meanwhile, or a threaded cgroup, whose processes are listed in its parent.
	}
	if err != nil {
		return nil, fmt.Errorf("read cgroup: %w", err)
	}
	return parseProcs(data), nil
}

// parseProcs returns the process IDs in the content of cgroup.procs. It skips malformed fields, and 0, which stands for a
// process that is not visible in this pid namespace.
func parseProcs(data []byte) map[int]bool {
	pids := make(map[int]bool)
	for _, field := range bytes.Fields(data) {
		if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 {
			pids[pid] = true
		}
	}
	return pids
}

// populated reports whether any process is in the cgroup or below. events is its open cgroup.events file.
// https://docs.kernel.org/admin-guide/cgroup-v2.html#core-interface-files
func populated(events *os.File) (bool, error) {
	buf := make([]byte, 256) // A few short lines.
	n, err := events.ReadAt(buf, 0)
	if errors.Is(err, unix.ENODEV) {
		return false, nil // Removed meanwhile.
	}
	for line := range bytes.Lines(buf[:n]) {
		if value, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("populated ")); ok {
			return string(value) != "0", nil
		}
	}
	return false, fmt.Errorf("read cgroup: %s has no populated field", events.Name())
}
