package cgroupv2

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// RemoveTree kills all processes in path, which is a Subtree.Path, and below, and removes the cgroups from the leaves up.
// If the calling process is inside, it first moves out. If no other node is left in the delegated directory, it also
// reverts the changes of Claim there. It waits until systemd has removed the scope that Claim created. A missing path is
// not an error. After ten seconds, or an earlier deadline of ctx, it returns an error that lists the remaining processes.
//
// Permissions: the owner of the subtree, in any process on the host. The guard calls it after a kill -9 of the parent.
// Runs in: parent.
func RemoveTree(ctx context.Context, path string) error {
	return removeSubtree(ctx, path, "", Options{})
}

func removeSubtree(ctx context.Context, path, origin string, o Options) error {
	if !filepath.IsAbs(path) || !isSubtreeName(filepath.Base(path)) {
		return fmt.Errorf("remove cgroup: %q is not the subtree of a node", path)
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	path = filepath.Clean(path)
	if err := removeBelow(ctx, filepath.Dir(path), path, origin, o); err != nil {
		return err
	}
	return waitScope(ctx, path, o)
}

func removeBelow(ctx context.Context, d, path, origin string, o Options) error {
	unlock, err := lockDir(d)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	defer unlock()
	if err := moveOut(path, []string{origin, d}, o); err != nil {
		return fmt.Errorf("remove cgroup %s: move out of it: %w", path, err)
	}
	if err := killAndRemove(ctx, path); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	undoClaim(d)
	return nil
}

// waitScope waits until systemd has removed the scope that claimScope created. systemd does so after the scope's last
// process has ended, which takes time on a busy machine. It does not wait if the caller itself is inside the scope.
func waitScope(ctx context.Context, path string, o Options) error {
	scope := filepath.Dir(path)
	if filepath.Base(scope) != filepath.Base(path)+scopeSuffix {
		return nil
	}
	h, err := DetectHost(o)
	if err != nil || inside(h.SelfDir(), scope) {
		return err
	}
	tick := time.NewTicker(pollSlice)
	defer tick.Stop()
	for exists(scope) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup: wait for systemd to remove the scope: %w", describeRemaining(scope, ctx.Err()))
		case <-tick.C:
		}
	}
	return nil
}

// moveOut moves the calling process out of path if it is inside: to the first of places that accepts it (a cgroup with
// enabled controllers does not), or else to the evacuation leaf next to path.
func moveOut(path string, places []string, o Options) error {
	h, err := DetectHost(o)
	if err != nil {
		return err
	}
	if !inside(h.SelfDir(), path) {
		return nil
	}
	for _, to := range places {
		if to != "" && !inside(to, path) && moveSelf(to) == nil {
			return nil
		}
	}
	evac, err := ensureEvac(filepath.Dir(path))
	if err != nil {
		return err
	}
	return moveSelf(evac)
}

func inside(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// evacMark is set on an evacuation leaf that Claim created, so that a leaf that existed before is not removed. Kernels
// before 5.7 do not support user.* attributes on cgroups; there the leaf remains until it is empty.
const evacMark = "user.rootlessnode.evac"

func ensureEvac(d string) (string, error) {
	evac := filepath.Join(d, evacLeaf)
	err := os.Mkdir(evac, dirMode)
	switch {
	case err == nil:
		_ = unix.Setxattr(evac, evacMark, []byte("1"), 0)
	case !errors.Is(err, os.ErrExist):
		return "", err
	}
	return evac, nil
}

func createdByClaim(evac string) bool {
	n, err := unix.Getxattr(evac, evacMark, nil)
	return err == nil && n > 0
}

// undoClaim reverts the changes of Claim in d if no other cgroup uses it. It ignores errors, because leftovers are harmless.
func undoClaim(d string) {
	children, err := subdirs(d)
	if err != nil {
		return
	}
	for _, c := range children {
		if c != evacLeaf && c != enterLeaf {
			return
		}
	}
	disableAll(d)
	evac := filepath.Join(d, evacLeaf)
	if createdByClaim(evac) {
		pids, _ := readPids(evac)
		for _, pid := range pids {
			_ = movePid(d, pid)
		}
	}
	_ = unix.Rmdir(evac)
}

// killAndRemove kills all processes in dir and below and removes the cgroups. It retries until ctx ends, because a container
// runtime may create a cgroup while it is being killed.
func killAndRemove(ctx context.Context, dir string) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := killAll(ctx, dir, Kill)
		if err == nil {
			err = rmdirAll(dir)
		}
		if err == nil || errors.Is(err, os.ErrNotExist) && !exists(dir) {
			return nil
		}
		select {
		case <-ctx.Done():
			return describeRemaining(dir, err)
		case <-time.After(wait):
		}
	}
}

func exists(dir string) bool {
	_, err := os.Lstat(dir)
	return err == nil
}

func rmdirAll(dir string) error {
	return ignoreGone(eachDir(dir, func(d string) error {
		if err := unix.Rmdir(d); err != nil {
			return &os.PathError{Op: "rmdir", Path: d, Err: err}
		}
		return nil
	}))
}

// eachDir calls f for dir and every directory below, children first.
func eachDir(dir string, f func(dir string) error) error {
	children, err := subdirs(dir)
	if err != nil {
		return ignoreGone(err)
	}
	var errs []error
	for _, c := range children {
		errs = append(errs, eachDir(filepath.Join(dir, c), f))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return ignoreGone(f(dir))
}
