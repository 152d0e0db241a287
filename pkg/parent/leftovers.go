package parent

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// RemoveLeftovers removes the cgroup and the files of a run that was killed together with its guard. It does nothing if there are none.
//
// Errors: of class errdefs.ErrAlreadyRunning if the node is running.
//
// Runs in: parent.
func RemoveLeftovers(rt layout.Runtime) error {
	if _, err := os.Lstat(rt.Dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := takeLock(rt)
	if err != nil {
		return err
	}
	err = clearRuntime(rt)
	removeRuntime(rt)
	return errors.Join(err, lock.Close())
}

// KillHolders kills the processes that hold the locks of a node, usually its guard, and does not wait. Use it if they do not end by
// themselves.
//
// Runs in: parent.
func KillHolders(rt layout.Runtime, d layout.Data) error {
	var errs []error
	for _, path := range []string{rt.Lock(), d.Lock()} {
		for _, pid := range proc.Host.Openers(path) {
			if pid != os.Getpid() {
				errs = append(errs, killOpener(pid, path))
			}
		}
	}
	return errors.Join(errs...)
}

// killOpener kills a process if it still has the file open after it was opened as a pidfd, because the pid may have been reused before.
func killOpener(pid int, path string) error {
	p, err := proc.Open(pid)
	if proc.Ended(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	if !slices.Contains(proc.Host.Openers(path), pid) {
		return nil
	}
	return p.Signal(unix.SIGKILL)
}
