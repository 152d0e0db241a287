package cgroupv2

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// RemoveTree kills everything below path, a node's subtree as Subtree.Path tells it, and removes it from the leaves up.
// The calling process, when inside, first moves out. When no other node is left in the delegated directory, what Claim
// changed there is undone too, and systemd is given the time to remove the scope that Claim had asked for. A path that is
// gone is no error. With no earlier deadline in ctx it gives up after ten seconds and says which processes are left.
//
// Who may call: the owner of the subtree, in any process on the host; the guard does so after a kill -9 of the parent.
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
	if err := leave(path, []string{origin, d}, o); err != nil {
		return fmt.Errorf("remove cgroup %s: move out of it: %w", path, err)
	}
	if err := killAndRemove(ctx, path); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	tidy(d)
	return nil
}

// waitScope waits until systemd has removed the scope that claimScope asked for, which it does once the scope's last process has
// ended: not at once on a busy machine. A caller inside the scope would wait for itself and does not.
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
			return fmt.Errorf("remove cgroup: wait for systemd to remove the scope: %w", leftIn(scope, ctx.Err()))
		case <-tick.C:
		}
	}
	return nil
}

// leave moves the calling process out of path when it is inside: to the first of the places that takes it (one that hands
// on controllers does not), else to the evacuation leaf beside path.
func leave(path string, places []string, o Options) error {
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

// evacMark tells an evacuation leaf that Claim made from one that was there, which is not ours to undo. Kernels before
// 5.7 take no user.* attribute here: then the leaf stays until it is empty.
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

func madeByUs(evac string) bool {
	n, err := unix.Getxattr(evac, evacMark, nil)
	return err == nil && n > 0
}

// tidy undoes in d what Claim did, once no other cgroup uses it. Best effort: what stays does no harm but to be seen.
func tidy(d string) {
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
	if madeByUs(evac) {
		pids, _ := readPids(evac)
		for _, pid := range pids {
			_ = movePid(d, pid)
		}
	}
	_ = unix.Rmdir(evac)
}

// killAndRemove retries until ctx ends: a runtime that is being killed may still make a cgroup behind our back.
func killAndRemove(ctx context.Context, dir string) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := kill(dir)
		if err == nil {
			err = waitEmpty(ctx, dir)
		}
		if err == nil {
			err = rmdirAll(dir)
		}
		if err == nil || errors.Is(err, os.ErrNotExist) && !exists(dir) {
			return nil
		}
		pause.Reset(wait)
		select {
		case <-ctx.Done():
			return leftIn(dir, err)
		case <-pause.C:
		}
	}
}

func exists(dir string) bool {
	_, err := os.Lstat(dir)
	return err == nil
}

// kill ends every process in dir and below. Kernels before 5.14 have no cgroup.kill: there each process is signalled,
// which the caller repeats until the cgroup is empty.
func kill(dir string) error {
	err := write(dir, killFile, "1")
	if !errors.Is(err, os.ErrNotExist) || !exists(dir) {
		return err
	}
	_ = signalAll(dir, unix.SIGKILL) // what was missed is there at the next attempt
	return nil
}

// signalAll signals every process in dir and below once, except the calling one.
func signalAll(dir string, sig unix.Signal) error {
	return eachDir(dir, func(d string) error { return signalDirect(d, sig) })
}

// signalDirect signals the processes directly in dir. A pid may be reused at any time, so it opens a pidfd for each, reads
// the list again, and signals those that are still listed: a process in the second list is the one that the pidfd
// refers to, or the pidfd's process is dead and the signal reaches nothing.
func signalDirect(dir string, sig unix.Signal) error {
	pids, err := readPids(dir)
	if err != nil {
		return ignoreUnlisted(err)
	}
	handles := make(map[int]int, len(pids))
	defer func() {
		for _, fd := range handles {
			_ = unix.Close(fd)
		}
	}()
	var errs []error
	for _, pid := range pids {
		if pid <= 0 || pid == os.Getpid() {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		switch {
		case err == nil:
			handles[pid] = fd
		case !errors.Is(err, unix.ESRCH):
			errs = append(errs, fmt.Errorf("open pidfd of process %d: %w", pid, err))
		}
	}
	listed, err := readPids(dir)
	if err != nil {
		return ignoreUnlisted(err)
	}
	for pid, fd := range handles {
		if !slices.Contains(listed, pid) {
			continue
		}
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("signal process %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

// ignoreUnlisted also accepts a threaded cgroup, whose processes are listed in the cgroup above it.
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

// pollSlice is how often a wait for the kernel looks at its context.
const pollSlice = 50 * time.Millisecond

// waitEmpty waits until no process is left in dir and below: cgroup.events wakes a poll for POLLPRI when "populated"
// changes (cgroup-v2.rst, "[Un]populated Notification").
func waitEmpty(ctx context.Context, dir string) error {
	f, err := os.Open(filepath.Join(dir, eventsFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, 256)
	for {
		n, err := unix.Pread(int(f.Fd()), buf, 0)
		if errors.Is(err, unix.ENODEV) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		if !strings.Contains(string(buf[:n]), "populated 1") {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(fds, int(pollSlice.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func rmdirAll(dir string) error {
	return ignoreGone(eachDir(dir, func(d string) error {
		if err := unix.Rmdir(d); err != nil {
			return &os.PathError{Op: "rmdir", Path: d, Err: err}
		}
		return nil
	}))
}

// eachDir calls f for dir and all below, children first.
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

// leftIn describes what keeps dir from going.
func leftIn(dir string, cause error) error {
	var left []string
	_ = eachDir(dir, func(d string) error {
		pids, _ := readPids(d)
		for _, pid := range pids {
			comm, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
			left = append(left, fmt.Sprintf("%d (%s) in %s", pid, strings.TrimSpace(string(comm)), d))
		}
		return nil
	})
	if len(left) == 0 {
		return fmt.Errorf("%s: %w", dir, cause)
	}
	return fmt.Errorf("%s: processes are left: %s: %w", dir, strings.Join(left, ", "), cause)
}
