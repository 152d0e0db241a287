package parent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// heldLock is a node's lock that this process holds.
type heldLock struct{ *os.File }

// heldHere are the locks of this process, by path. The kernel drops all record locks of a process on a file as soon as it
// closes any descriptor of that file (fcntl(2)), so nobody may open one of these again.
var heldHere sync.Map

// Close releases the lock, unless another process shares it.
func (l heldLock) Close() error {
	heldHere.Delete(l.Name())
	return l.File.Close()
}

// takeLock takes the exclusive lock of a node and writes this process's pid into it. The lock belongs to the open file,
// so a process that inherits the descriptor shares it (flock(2)); it is free when the last of them has closed it.
//
// A record lock (fcntl(2)) beside it belongs to this process alone, and tells others its pid for as long as it lives.
//
// The file is removed by the guard while it is locked; whoever gets a lock on a file that is no longer there tries again.
func takeLock(rt layout.Runtime) (heldLock, error) {
	if _, ours := heldHere.Load(rt.Lock()); ours {
		return heldLock{}, alreadyRunning(rt)
	}
	f, err := lockFile(rt)
	if err != nil {
		return heldLock{}, err
	}
	heldHere.Store(rt.Lock(), nil)
	return heldLock{f}, nil
}

func lockFile(rt layout.Runtime) (*os.File, error) {
	for {
		if err := os.MkdirAll(filepath.Dir(rt.Lock()), 0o700); err != nil {
			return nil, fmt.Errorf("make the runtime dir: %w", err)
		}
		f, err := os.OpenFile(rt.Lock(), os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue // another node's guard has just removed the empty directory
		}
		if err != nil {
			return nil, fmt.Errorf("open the lock: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			defer f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, alreadyRunning(rt)
			}
			return nil, fmt.Errorf("lock %s: %w", rt.Lock(), err)
		}
		if !sameFile(f, rt.Lock()) {
			f.Close()
			continue
		}
		record := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &record); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", rt.Lock(), err)
		}
		return f, nil
	}
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

func alreadyRunning(rt layout.Runtime) error {
	name := filepath.Base(rt.Dir)
	err := fmt.Errorf("lock %s: the node %q is already running%s", rt.Lock(), name, holderText(rt))
	return errdefs.WithHintf(errdefs.Class(errdefs.ErrAlreadyRunning, err),
		"rootlessnode --name %[1]s status\nrootlessnode --name %[1]s down", name)
}

func holderText(rt layout.Runtime) string {
	if h, err := Holder(rt); err == nil && h.ParentPID > 0 {
		return fmt.Sprintf(" (parent pid %d)", h.ParentPID)
	}
	return ""
}

// LockHolder tells who holds a node's lock.
type LockHolder struct {
	// Locked: something of the node is still there, if only the guard that cleans up.
	Locked bool
	// ParentPID is the living parent's pid in the caller's pid namespace; 0 when it is gone.
	ParentPID int
}

// Holder tells who holds the lock of a node. It believes no file's content: the kernel gives up both locks with the
// processes that hold them. Runs in: parent.
func Holder(rt layout.Runtime) (LockHolder, error) {
	if _, ours := heldHere.Load(rt.Lock()); ours {
		return LockHolder{Locked: true, ParentPID: os.Getpid()}, nil
	}
	f, err := os.OpenFile(rt.Lock(), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return LockHolder{}, nil
	}
	if err != nil {
		return LockHolder{}, fmt.Errorf("open the lock: %w", err)
	}
	defer f.Close()
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case err == nil:
		return LockHolder{}, nil
	case !errors.Is(err, unix.EWOULDBLOCK):
		return LockHolder{}, fmt.Errorf("look at the lock %s: %w", rt.Lock(), err)
	}
	record := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &record); err != nil {
		return LockHolder{}, fmt.Errorf("look at the lock %s: %w", rt.Lock(), err)
	}
	h := LockHolder{Locked: true}
	if record.Type != unix.F_UNLCK {
		h.ParentPID = int(record.Pid)
	}
	return h, nil
}
