package cgroupv2

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Subtree is the part of the tree that one node owns, S.
type Subtree struct {
	path      string
	origin    string
	available []string
	refused   map[string]string
	o         Options
}

// Claim makes the subtree of the node called name and moves the calling process into it. It asks systemd for the scope
// when the delegation is one, removes what a crashed node of that name left, moves bystanders out of D and hands on
// every controller that D has. The caller holds the node's lock, so no other node of that name lives.
//
// Afterwards start the child, whose cgroup namespace then has S as its root, and call Arrange.
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
		return nil, errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("%s is not delegated: not writable: %v", d, not))
	}
	if err := checkDomain(d); err != nil {
		return nil, errdefs.Class(errdefs.ErrPreflight, errdefs.WithHint(err,
			"Use a cgroup that nobody switched to threaded mode: log in anew, or have root run `rootlessnode host setup` again."))
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
	s := &Subtree{path: filepath.Join(d, layout.Cgroup(name)), origin: h.SelfDir(), available: available, o: o}
	if err := s.make(ctx); err != nil {
		return nil, err
	}
	evacuate(d, o)
	s.refused = enable(d, s.usable())
	return s, nil
}

// make ends with the calling process in a new S.
func (s *Subtree) make(ctx context.Context) error {
	if exists(s.path) {
		s.o.Log.WithField("cgroup", s.path).Info("removing what an earlier node left")
		if err := leave(s.path, []string{filepath.Dir(s.path)}, s.o); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, removeTimeout)
		defer cancel()
		if err := killAndRemove(ctx, s.path); err != nil {
			return fmt.Errorf("leftovers of an earlier node: %w", err)
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

// usable are the controllers to hand on: what a node can use of what D has.
func (s *Subtree) usable() []string {
	var out []string
	for _, c := range append(Wanted(), Optional()...) {
		if slices.Contains(s.available, c) {
			out = append(out, c)
		}
	}
	return out
}

// sweeps bounds how often a cgroup is emptied again because a process in it forked meanwhile.
const sweeps = 16

// evacuate moves the processes directly in d to its evacuation leaf. One that cannot be moved is told, no more: the price
// is a refused controller.
func evacuate(d string, o Options) {
	var left []int
	for range sweeps {
		pids, err := readPids(d)
		if err != nil || len(pids) == 0 {
			return
		}
		evac, err := ensureEvac(d)
		if err != nil {
			o.Log.WithError(err).Warn("evacuate delegated cgroup")
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
	o.Log.WithField("cgroup", d).WithField("pids", left).Warn("processes of others cannot be moved aside")
}

// Path returns S's absolute directory.
func (s *Subtree) Path() string { return s.path }

// Remove stops being in the subtree, kills what is left in it and removes it; see RemoveTree. The calling process goes
// back to where Claim found it.
//
// Runs in: parent.
func (s *Subtree) Remove(ctx context.Context) error {
	return removeSubtree(ctx, s.path, s.origin, s.o)
}
