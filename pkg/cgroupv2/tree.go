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

// do calls f with the directory of a cgroup. format describes the operation and has one %s for the name.
func (t Tree) do(name, format string, f func(dir string) error) error {
	dir, err := t.dir(name)
	if err == nil {
		err = f(dir)
	}
	if err != nil {
		return fmt.Errorf(format+": %w", name, err)
	}
	return nil
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
	return t.do(name, fmt.Sprintf("move process %d to cgroup %%s", pid), func(dir string) error { return movePid(dir, pid) })
}

// Populated is like the function Populated.
func (t Tree) Populated(name string) (some bool, err error) {
	err = t.do(name, "read cgroup %s", func(dir string) (err error) {
		some, err = Populated(dir)
		return err
	})
	return some, err
}

// Signal sends a signal once to every process in the cgroup and below, and does not wait. Processes that are forked
// meanwhile may be missed. A missing cgroup is not an error.
func (t Tree) Signal(name string, sig unix.Signal) error {
	return t.do(name, "signal cgroup %s", func(dir string) error { return signalAll(dir, sig) })
}

// WaitEmpty waits until no process is in the cgroup and below, or ctx ends. A missing cgroup is empty.
func (t Tree) WaitEmpty(ctx context.Context, name string) error {
	return t.do(name, "wait for cgroup %s to be empty", func(dir string) error { return waitEmpty(ctx, dir) })
}

// Kill is like the function Kill.
func (t Tree) Kill(name string) error { return t.do(name, "kill cgroup %s", Kill) }

// Remove kills all processes in the cgroup and below and removes the cgroups, from the leaves up. It waits at most ten
// seconds for the kernel. A missing cgroup is not an error.
func (t Tree) Remove(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	return t.do(name, "remove cgroup %s", func(dir string) error { return killAndRemove(ctx, dir) })
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
