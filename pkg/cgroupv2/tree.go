package cgroupv2

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Tree is the node's subtree as seen from inside, where it is the root of the mounted tree. Names are relative, for example
// "system/kubelet".
//
// Runs in: child (the node role). The zero value is the tree at /sys/fs/cgroup.
type Tree struct{ Root string }

func (t Tree) root() string {
	if t.Root == "" {
		return "/sys/fs/cgroup"
	}
	return t.Root
}

// dir checks a name and returns its directory. The root itself is not a valid name.
func (t Tree) dir(name string) (string, error) {
	if !filepath.IsLocal(name) || filepath.Clean(name) == "." {
		return "", fmt.Errorf("cgroup name %q: must be a relative path below the node's tree", name)
	}
	return filepath.Join(t.root(), name), nil
}

// EnsureLeaf creates a cgroup and its parents if necessary, and returns its directory.
func (t Tree) EnsureLeaf(name string) (dir string, err error) {
	dir, err = t.dir(name)
	if err == nil {
		err = os.MkdirAll(dir, dirMode)
	}
	if err != nil {
		return "", fmt.Errorf("create cgroup: %w", err)
	}
	return dir, nil
}

// Move moves a process with all its threads into an existing cgroup.
func (t Tree) Move(name string, pid int) error {
	dir, err := t.dir(name)
	if err == nil {
		err = movePid(dir, pid)
	}
	if err != nil {
		return fmt.Errorf("move process %d to cgroup %s: %w", pid, name, err)
	}
	return nil
}

// Populated is like the function Populated.
func (t Tree) Populated(name string) (bool, error) {
	dir, err := t.dir(name)
	if err != nil {
		return false, err
	}
	return Populated(dir)
}

// Signal sends a signal once to every process in the cgroup and below, and does not wait. Processes that are forked
// meanwhile may be missed. A missing cgroup is not an error.
func (t Tree) Signal(name string, sig unix.Signal) error {
	dir, err := t.dir(name)
	if err == nil {
		err = signalAll(dir, sig)
	}
	if err != nil {
		return fmt.Errorf("signal cgroup %s: %w", name, err)
	}
	return nil
}

// WaitEmpty waits until no process is in the cgroup and below, or ctx ends. A missing cgroup is empty.
func (t Tree) WaitEmpty(ctx context.Context, name string) error {
	dir, err := t.dir(name)
	if err == nil {
		err = waitEmpty(ctx, dir)
	}
	if err != nil {
		return fmt.Errorf("wait for cgroup %s to be empty: %w", name, err)
	}
	return nil
}

// Kill is like the function Kill.
func (t Tree) Kill(name string) error {
	dir, err := t.dir(name)
	if err == nil {
		err = Kill(dir)
	}
	if err != nil {
		return fmt.Errorf("kill cgroup %s: %w", name, err)
	}
	return nil
}

// Remove kills all processes in the cgroup and below and removes the cgroups, from the leaves up. It waits at most ten
// seconds for the kernel. A missing cgroup is not an error.
func (t Tree) Remove(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	dir, err := t.dir(name)
	if err == nil {
		err = killAndRemove(ctx, dir)
	}
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", name, err)
	}
	return nil
}

// Controllers returns the controllers that are enabled for the cgroups of the tree, including those of pods.
func (t Tree) Controllers() ([]string, error) {
	on, err := readList(t.root(), subtreeFile)
	if err != nil {
		return nil, fmt.Errorf("read controllers: %w", err)
	}
	slices.Sort(on)
	return on, nil
}
