package parent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// lockRetry is the longest time that takeLock waits for a lock without a parent.
const lockRetry = time.Second

// nodeLock is a node's lock that this process holds. The zero value holds nothing.
type nodeLock struct{ *os.File }

// ownLocks has the paths of the locks that this process holds. This process must not open these files again, because the kernel drops
// all record locks of a process on a file as soon as the process closes any descriptor of that file (fcntl(2)). The mutex is held
// as long as a lock file is open for another purpose, or a lock is being acquired.
var ownLocks = struct {
	sync.Mutex
	paths map[string]bool
}{paths: map[string]bool{}}

// Close releases the lock, unless another process shares it.
func (l nodeLock) Close() error {
	if l.File == nil {
		return nil
	}
	ownLocks.Lock()
	defer ownLocks.Unlock()
	delete(ownLocks.paths, l.Name())
	return l.File.Close()
}

// remove removes the file of the lock and then releases the lock.
func (l nodeLock) remove() error {
	path := l.Name()
	err := errors.Join(os.Remove(path), l.Close())
	_ = os.Remove(filepath.Dir(path)) // only if it is empty
	return err
}

// takeLock acquires the exclusive lock of a node at Runtime.Lock. The lock belongs to the open file, so a process that inherits the
// descriptor shares it (flock(2)). It is released when the last of these processes has closed the descriptor.
//
// In addition, takeLock acquires a record lock (fcntl(2)), which belongs to this process only. Other processes read the parent's pid
// from it while this process is running.
//
// The guard removes the file while it is locked, so takeLock retries if it has locked a removed file.
//
// Errors: of class errdefs.ErrAlreadyRunning if another process holds the lock.
func takeLock(rt layout.Runtime) (nodeLock, error) { return lockAt(rt.Lock(), filepath.Base(rt.Dir)) }

// takeDataLock is takeLock for Data.Lock. It returns a nodeLock without a file if the file cannot be created or the file system does not
// support both kinds of locks, such as NFS: the node only needs this lock if its runtime dir is removed.
func takeDataLock(d layout.Data, name string) (nodeLock, error) {
	lock, err := lockAt(d.Lock(), name)
	if err != nil && !errors.Is(err, errdefs.ErrAlreadyRunning) {
		return nodeLock{}, nil
	}
	return lock, err
}

// lockAt acquires the lock in the file path for the node called name.
func lockAt(path, name string) (nodeLock, error) {
	ownLocks.Lock()
	defer ownLocks.Unlock()
	if ownLocks.paths[path] {
		return nodeLock{}, alreadyRunning(path, name)
	}
	f, err := lockFile(path, name)
	if err != nil {
		return nodeLock{}, err
	}
	ownLocks.paths[path] = true
	return nodeLock{f}, nil
}

func lockFile(path, name string) (*os.File, error) {
	for {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("create the runtime dir: %w", err)
		}
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue // the guard of another node has removed the empty directory
		}
		if err != nil {
			return nil, fmt.Errorf("open the lock: %w", err)
		}
		if err := tryLock(f); err != nil {
			defer f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, alreadyRunning(path, name)
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !sameFile(f, path) {
			f.Close()
			continue
		}
		record := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &record); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return f, nil
	}
}

// tryLock locks f. It returns EWOULDBLOCK at once if a parent has the record lock, otherwise after lockRetry, because two kinds of
// processes share the lock for a moment: callers of Holder, and children of the last holder between fork and exec.
func tryLock(f *os.File) error {
	until := time.Now().Add(lockRetry)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(until) {
			return err
		}
		if record, look := recordLock(f); look != nil || record.Type != unix.F_UNLCK {
			return errors.Join(err, look)
		}
		time.Sleep(lockRetry / 200)
	}
}

// recordLock returns the record lock on f of another process. Its type is F_UNLCK if no other process holds one.
func recordLock(f *os.File) (unix.Flock_t, error) {
	record := unix.Flock_t{Type: unix.F_WRLCK}
	err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &record)
	return record, err
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

func alreadyRunning(path, name string) error {
	pid := ""
	if h, err := holder(path); err == nil && h.ParentPID > 0 {
		pid = fmt.Sprintf(" (parent pid %d)", h.ParentPID)
	}
	return errdefs.AlreadyRunning("lock %s: node %q is already running%s", path, name, pid).Do(errdefs.ShowStatus).Do(errdefs.Stop)
}

// LockHolder describes the state of a node's lock.
type LockHolder struct {
	// Locked is set while the parent or the guard of the node is running.
	Locked bool
	// ParentPID is the pid of the running parent in the caller's pid namespace; 0 if there is no parent.
	ParentPID int
	// RuntimeLost is set if the parent is running, but its runtime dir was removed. Its sockets cannot be reached then.
	RuntimeLost bool
}

// Holder returns the state of a node's lock. It does not depend on the content of a file, because the kernel releases the locks when
// the processes that hold them end. If the lock in the runtime dir is free or missing, it looks at the lock in the data dir.
//
// Runs in: parent.
func Holder(rt layout.Runtime, d layout.Data) (LockHolder, error) {
	ownLocks.Lock()
	defer ownLocks.Unlock()
	h, err := holder(rt.Lock())
	if err != nil {
		return h, err
	}
	data, err := holder(d.Lock())
	if err != nil {
		return h, nil // the data dir is not accessible
	}
	if !h.Locked {
		h = data
	}
	// The parent creates the runtime dir before it acquires the lock in the data dir.
	if _, err := os.Lstat(rt.Dir); data.ParentPID > 0 && errors.Is(err, os.ErrNotExist) {
		h.RuntimeLost = true
	}
	return h, nil
}

// holder returns the state of the lock in the file path. The caller has locked ownLocks.
func holder(path string) (LockHolder, error) {
	if ownLocks.paths[path] {
		return LockHolder{Locked: true, ParentPID: os.Getpid()}, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
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
		return LockHolder{}, fmt.Errorf("check the lock %s: %w", path, err)
	}
	record, err := recordLock(f)
	if err != nil {
		return LockHolder{}, fmt.Errorf("check the lock %s: %w", path, err)
	}
	h := LockHolder{Locked: true}
	if record.Type != unix.F_UNLCK {
		h.ParentPID = int(record.Pid)
	}
	return h, nil
}
