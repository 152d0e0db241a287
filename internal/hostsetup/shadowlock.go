package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const (
	// shadowLockLimit is as long as shadow's programs and lckpwdf(3) wait.
	shadowLockLimit = 15 * time.Second
	shadowLockPoll  = 100 * time.Millisecond
)

// lockSubids acquires the locks that useradd(8), usermod(8) and newusers(8) use to edit /etc/subuid and /etc/subgid: that of
// lckpwdf(3) on /etc/.pwd.lock, and FILE.lock of each file, which is a hard link to a file with the pid of the process that holds
// the lock. As in those programs, a lock is removed if its process does not exist any more.
func (e *env) lockSubids(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, shadowLockLimit)
	defer cancel()
	var locked []func()
	unlock = func() {
		for i := len(locked) - 1; i >= 0; i-- {
			locked[i]()
		}
	}
	for _, take := range []func() (func(), error){
		func() (func(), error) { return lockPasswords(ctx, e.path("/etc/.pwd.lock")) },
		func() (func(), error) { return lockByLink(ctx, e.path(hostinfo.SubuidFile)) },
		func() (func(), error) { return lockByLink(ctx, e.path(hostinfo.SubgidFile)) },
	} {
		release, err := take()
		if err != nil {
			unlock()
			return nil, err
		}
		locked = append(locked, release)
	}
	return unlock, nil
}

// lockPasswords acquires the lock of lckpwdf(3). The lock ends when the file is closed.
func lockPasswords(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	for {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &whole)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return nil, errors.Join(&os.PathError{Op: "lock", Path: path, Err: err}, f.Close())
		}
		if !pauseFor(ctx, shadowLockPoll) {
			return nil, errors.Join(fmt.Errorf("lock %s: another process holds it: %w", path, context.Cause(ctx)), f.Close())
		}
	}
}

// lockByLink acquires FILE.lock.
func lockByLink(ctx context.Context, file string) (unlock func(), err error) {
	lock, own := file+".lock", file+"."+strconv.Itoa(os.Getpid())
	if err := os.Remove(own); err != nil && !errors.Is(err, os.ErrNotExist) { // left by a process that was killed
		return nil, err
	}
	f, err := os.OpenFile(own, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(own) }() // the content remains through the link
	_, err = f.WriteString(strconv.Itoa(os.Getpid()) + "\x00")
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	for {
		err := os.Link(own, lock)
		if err == nil {
			return func() { _ = os.Remove(lock) }, nil
		}
		if !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		holder, alive := lockHolder(lock)
		if !alive {
			if err := os.Remove(lock); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
			continue
		}
		if !pauseFor(ctx, shadowLockPoll) {
			return nil, errdefs.Errorf("lock %s: %s is held by %s: %w", file, lock, holder, context.Cause(ctx)).
				Hint("# if no useradd or usermod is running:\nrm " + hostinfo.Quote(lock))
		}
	}
}

// lockHolder returns the process that a lock file names and reports whether it is alive. A lock file without a pid counts as held.
func lockHolder(lock string) (holder string, alive bool) {
	b, err := os.ReadFile(lock)
	if errors.Is(err, os.ErrNotExist) {
		return "", false // released since
	}
	pid, convErr := strconv.Atoi(strings.TrimRight(string(b), "\x00\n"))
	if err != nil || convErr != nil || pid <= 0 {
		return "an unknown process", true
	}
	if pid == os.Getpid() {
		return "", false // left by an earlier process with the same pid
	}
	return fmt.Sprintf("process %d", pid), proc.Exists(pid)
}

func pauseFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// replaceText replaces the text of a file atomically, because other programs may read it at any time. It keeps the owner, mode and
// SELinux label. It follows a symbolic link, and creates the file if it does not exist.
func replaceText(path string, text []byte) error {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	err := atomicfile.Options{Durable: true, Keep: true}.Write(path, text, 0o644)
	if errors.Is(err, unix.EBUSY) { // the file is a mount point, as in containers, and cannot be renamed over
		return os.WriteFile(path, text, 0o644)
	}
	return err
}
