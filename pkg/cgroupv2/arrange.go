package cgroupv2

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// Report is the result of Arrange.
type Report struct {
	// Enabled lists the controllers that are available to pods.
	Enabled []string `json:"enabled"`
	// Refused lists the available controllers that could not be enabled, with the kernel's error.
	Refused map[string]string `json:"refused,omitempty"`
	// Unenforced lists the wanted controllers that are not enabled, because they are missing or refused. Limits that need
	// them have no effect on this node.
	Unenforced []string `json:"unenforced,omitempty"`
}

// Arrange moves all processes out of S, so that controllers can be enabled for its children: the child and its descendants
// to S/system/child, the parent and all others to S/system/parent. It returns an error only if processes cannot be moved;
// refused controllers are in the report.
//
// Call it after the child was created with a cgroup namespace rooted at S. Runs in: parent. Inside, processes of other pid
// namespaces have the ID 0 and cannot be moved.
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

// sweep moves all processes that are directly in S.
func (s *Subtree) sweep(childPID int) error {
	pids, err := readPids(s.path)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		leaf := parentLeaf
		if descends(pid, childPID) {
			leaf = childLeaf
		}
		if err := movePid(filepath.Join(s.path, leaf), pid); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("move process %d: %w", pid, err)
		}
	}
	return nil
}

// descends reports whether pid is ancestor or one of its descendants.
func descends(pid, ancestor int) bool {
	for pid > 1 {
		if pid == ancestor {
			return true
		}
		s, _ := proc.Host.Stat(pid)
		pid = s.Parent // 0 on error
	}
	return false
}
