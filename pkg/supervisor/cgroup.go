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

// killPause is how long the killed get to leave a cgroup before it is looked for others, forked meanwhile.
const killPause = 20 * time.Millisecond

// emptyCgroup kills everything in the cgroup at dir and below, and returns when it is empty.
//
// It does not use cgroup.kill, for the next process of the unit is to be born in dir. Since Linux 6.14, and the stable
// kernels that took "cgroup: fix race between fork and cgroup.kill", a child cloned into a cgroup (CLONE_INTO_CGROUP) that
// was ever written to cgroup.kill is killed at birth: the number of such writes that the clone remembers is that of the
// cgroup of its parent, the one it is compared with that of dir (cgroup_css_set_fork and cgroup_post_fork in
// kernel/cgroup/cgroup.c). Seen on 6.18. When that is mended everywhere one write to cgroup.kill can replace the loop.
func emptyCgroup(dir string, deadline time.Time) error {
	events, err := os.Open(filepath.Join(dir, "cgroup.events"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // Removed, hence empty.
	}
	if err != nil {
		return fmt.Errorf("look into cgroup: %w", err)
	}
	defer events.Close()
	for {
		full, err := populated(events)
		if err != nil || !full {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cgroup %s: processes still there after SIGKILL", dir)
		}
		if err := killMembers(dir); err != nil {
			return err
		}
		// The kernel marks the file when the cgroup empties.
		wait := []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(wait, int(killPause.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for cgroup %s to empty: %w", dir, err)
		}
	}
}

// killMembers kills who is in the cgroup at dir, and below, at this moment.
func killMembers(dir string) error {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return killDirect(path)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // One of them was removed meanwhile.
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
	// A number in the second list belongs to the process the handle is of, or that one is dead: no stranger that took
	// over the number of a member before its handle was made is hit.
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

// members returns the processes that are in the cgroup at dir itself.
func members(dir string) (map[int]bool, error) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // Removed meanwhile; a threaded cgroup, whose processes are listed above it.
	}
	if err != nil {
		return nil, fmt.Errorf("look into cgroup: %w", err)
	}
	return parseProcs(data), nil
}

// parseProcs takes the process numbers from the text of cgroup.procs. 0 stands for one that cannot be seen from this pid
// namespace, and is left out, as is what is no number.
func parseProcs(data []byte) map[int]bool {
	pids := make(map[int]bool)
	for _, field := range bytes.Fields(data) {
		if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 {
			pids[pid] = true
		}
	}
	return pids
}

// populated reads whether anybody is in the cgroup whose cgroup.events is given, or below.
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
	return false, fmt.Errorf("look into cgroup: %s does not tell whether it is populated", events.Name())
}
