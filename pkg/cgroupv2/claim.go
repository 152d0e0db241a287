package cgroupv2

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Subtree is the part of the tree that one node owns (S).
type Subtree struct {
	path      string
	origin    string
	available []string
	refused   map[string]string
	o         Options
}

// SubtreePath returns the path of the subtree that Claim will create, or "" if systemd has to create the delegation first.
func SubtreePath(d Delegation, name string) string {
	if d.Root == "" {
		return ""
	}
	return filepath.Join(d.Root, layout.Cgroup(name))
}

// Claim creates the subtree of the named node and moves the calling process into it. If the delegation is a scope, it has
// systemd create the scope first. It removes the leftovers of a crashed node of that name, moves other processes out of D
// and enables every controller of D that a node can use. The caller holds the node's lock, so that no other node of that
// name runs.
//
// Afterwards start the child, so that its cgroup namespace has S as its root, and call Arrange.
//
// Runs in: parent. Moves the whole process, not only the calling thread.
func Claim(ctx context.Context, d Delegation, name string, o Options) (*Subtree, error) {
	o = o.withDefaults()
	if d.Source == SourceScope && d.Root == "" {
		root, err := claimScope(ctx, name, o)
		if err != nil {
			return nil, fmt.Errorf("claim cgroup: %w", err)
		}
		d.Root = root
	}
	s, err := claimBelow(ctx, d.Root, name, o)
	if err != nil {
		return nil, fmt.Errorf("claim cgroup: %w", err)
	}
	return s, nil
}

func claimBelow(ctx context.Context, d, name string, o Options) (*Subtree, error) {
	if not := notWritable(d); len(not) > 0 {
		return nil, errdefs.Preflight("%s is not delegated: not writable: %v", d, not)
	}
	if err := checkDomain(d); err != nil {
		return nil, errdefs.Preflight("%w", err).
			Hint("# use a cgroup that is not in threaded mode: log in again, or prepare it again:").With(errdefs.Hint{setUp(accountName())})
	}
	h, err := DetectHost(o)
	if err != nil {
		return nil, err
	}
	available, err := readList(d, controllersFile)
	if err != nil {
		return nil, err
	}
	unlock, err := lockDir(d)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s := &Subtree{path: SubtreePath(Delegation{Root: d}, name), origin: h.SelfDir(), available: available, o: o}
	if err := s.create(ctx); err != nil {
		return nil, err
	}
	evacuate(d, o)
	s.refused = enable(d, s.usable())
	return s, nil
}

// create creates S and moves the calling process into it.
func (s *Subtree) create(ctx context.Context) error {
	if exists(s.path) {
		s.o.Log.WithField("cgroup", s.path).Info("removing the leftovers of an earlier node")
		if err := moveOut(s.path, []string{filepath.Dir(s.path)}, s.o); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, removeTimeout)
		defer cancel()
		if err := killAndRemove(ctx, s.path); err != nil {
			return fmt.Errorf("remove the leftovers of an earlier node: %w", err)
		}
	}
	if err := os.Mkdir(s.path, dirMode); err != nil {
		return err
	}
	err := checkDomain(s.path)
	if err == nil {
		err = moveSelf(s.path)
	}
	if err != nil {
		return errors.Join(err, unix.Rmdir(s.path))
	}
	return nil
}

// usable returns the controllers of D that a node can use.
func (s *Subtree) usable() []string {
	var out []string
	for _, c := range append(Wanted(), Optional()...) {
		if slices.Contains(s.available, c) {
			out = append(out, c)
		}
	}
	return out
}

// sweeps limits how often the processes of a cgroup are moved again because a process forked meanwhile.
const sweeps = 16

// evacuate moves the processes directly in d to its evacuation leaf. It only logs processes that cannot be moved, because
// they merely cause controllers to be refused.
func evacuate(d string, o Options) {
	var left []int
	for range sweeps {
		pids, err := readPids(d)
		if err != nil || len(pids) == 0 {
			return
		}
		evac, err := ensureEvac(d)
		if err != nil {
			o.Log.WithError(err).Warn("cannot evacuate the delegated cgroup")
			return
		}
		left = left[:0]
		for _, pid := range pids {
			if err := movePid(evac, pid); err != nil && !errors.Is(err, unix.ESRCH) {
				left = append(left, pid)
			}
		}
		if len(left) == len(pids) {
			break
		}
	}
	o.Log.WithField("cgroup", d).WithField("pids", left).Warn("cannot move foreign processes out of the delegated cgroup")
}

// Path returns the absolute directory of S.
func (s *Subtree) Path() string { return s.path }

// Remove moves the calling process out of the subtree, kills all processes left in it, and removes it; see RemoveTree. The
// calling process returns to the cgroup that it was in before Claim.
//
// Runs in: parent.
func (s *Subtree) Remove(ctx context.Context) error {
	return removeSubtree(ctx, s.path, s.origin, s.o)
}
