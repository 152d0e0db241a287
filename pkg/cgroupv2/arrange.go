package cgroupv2

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Report is what Arrange reached.
type Report struct {
	// Enabled are the controllers that pods' cgroups have.
	Enabled []string `json:"enabled"`
	// Refused are those that were there but could not be handed on, with the kernel's reason.
	Refused map[string]string `json:"refused,omitempty"`
	// Unenforced are the wanted controllers that are not enabled, missing and refused ones alike: limits that need them
	// do nothing on this node.
	Unenforced []string `json:"unenforced,omitempty"`
}

// Arrange empties S, so that controllers can be handed on: the parent and all others in S go to S/system/parent, the child
// and its descendants to S/system/child. It fails only when processes cannot be moved; a refused controller is in the
// report.
//
// Call it once the child exists with a cgroup namespace rooted at S. Runs in: parent; from inside, processes outside the
// pid namespace show as 0 and cannot be moved.
func (s *Subtree) Arrange(parentPID, childPID int) (Report, error) {
	for _, d := range []string{systemDir, parentLeaf, childLeaf} {
		if err := ensureDir(filepath.Join(s.path, d)); err != nil {
			return Report{}, fmt.Errorf("arrange cgroup: %w", err)
		}
	}
	for pid, leaf := range map[int]string{parentPID: parentLeaf, childPID: childLeaf} {
		if err := movePid(filepath.Join(s.path, leaf), pid); err != nil {
			return Report{}, fmt.Errorf("arrange cgroup: move process %d: %w", pid, err)
		}
	}
	r := Report{Refused: maps.Clone(s.refused)}
	for range sweeps {
		if err := s.sweep(childPID); err != nil {
			return Report{}, fmt.Errorf("arrange cgroup: %w", err)
		}
		if pids, err := readPids(s.path); err == nil && len(pids) == 0 {
			break
		}
	}
	for _, dir := range []string{s.path, filepath.Join(s.path, systemDir)} {
		has, err := readList(dir, controllersFile)
		if err != nil {
			return Report{}, fmt.Errorf("arrange cgroup: %w", err)
		}
		for c, why := range enable(dir, intersect(s.usable(), has)) {
			if r.Refused == nil {
				r.Refused = map[string]string{}
			}
			r.Refused[c] = why
		}
	}
	var err error
	if r.Enabled, err = readList(s.path, subtreeFile); err != nil {
		return Report{}, fmt.Errorf("arrange cgroup: %w", err)
	}
	r.Unenforced = without(Wanted(), r.Enabled)
	return r, nil
}

func intersect(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return !slices.Contains(b, s) })
}

// sweep moves every process still directly in S.
func (s *Subtree) sweep(childPID int) error {
	pids, err := readPids(s.path)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		leaf := parentLeaf
		if descends(s.o.Proc, pid, childPID) {
			leaf = childLeaf
		}
		if err := movePid(filepath.Join(s.path, leaf), pid); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("move process %d: %w", pid, err)
		}
	}
	return nil
}

// descends tells whether pid is ancestor or one of its descendants.
func descends(proc string, pid, ancestor int) bool {
	for pid > 1 {
		if pid == ancestor {
			return true
		}
		pid = parentOf(proc, pid)
	}
	return false
}

// parentOf reads field 4 of /proc/PID/stat (proc_pid_stat(5)); the command before it may hold anything but ends with the
// last parenthesis.
func parentOf(proc string, pid int) int {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}
