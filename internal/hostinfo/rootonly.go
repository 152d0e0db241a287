package hostinfo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// NotRootOnlyError is the reason why accounts other than root can change or replace a file.
type NotRootOnlyError struct {
	// Path is the file. At is the file or the parent directory that is unsafe, and Reason the reason.
	Path, At, Reason string
}

func (e *NotRootOnlyError) Error() string {
	if e.At == e.Path {
		return fmt.Sprintf("%s %s", e.Path, e.Reason)
	}
	return fmt.Sprintf("%s can be replaced: %s %s", e.Path, e.At, e.Reason)
}

// RootOnly returns nil if only root can change or replace the file at path: the file, every parent directory and every symbolic
// link on the path belong to root, and neither group nor others may write to them. Otherwise it returns a *NotRootOnlyError.
//
// An access control list that allows writing appears as a permission of the group (acl(5)). World-writable directories are
// rejected even if they are sticky, because their contents may be removed at any time, for example those of /tmp at each boot. A
// FUSE file system is rejected unless the root directory is on it, because its server decides about write access.
func RootOnly(path string) error {
	_, err := walkRootOnly(path, unix.O_PATH, false)
	return err
}

// RootOnlyForNow is like RootOnly, for a path that is used immediately. It accepts sticky directories, because accounts cannot
// remove or rename files of root in them.
func RootOnlyForNow(path string) error {
	_, err := walkRootOnly(path, unix.O_PATH, true)
	return err
}

// OpenRootOnly opens the file at path for reading if it passes the checks of RootOnly. It opens the same file that it checked.
func OpenRootOnly(path string) (*os.File, error) {
	return walkRootOnly(path, unix.O_RDONLY|unix.O_NONBLOCK, false) // a FIFO does not block
}

// maxLinks is the kernel's limit of symbolic links in one path (path_resolution(7)).
const maxLinks = 40

// rootWalk resolves a path through directories that passed the checks.
type rootWalk struct {
	path string // the path to resolve
	dir  int    // the current directory
	at   string // its name
	root uint64 // the device of the root directory
	// sticky is set if world-writable directories are accepted if they are sticky.
	sticky bool
}

// walkRootOnly checks path component by component and opens it with flags. No other account can change anything between check and
// use, because every checked directory is writable only for root. For O_PATH it returns no file.
func walkRootOnly(path string, flags int, sticky bool) (*os.File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	w := &rootWalk{path: path, dir: -1, sticky: sticky}
	defer func() { _ = unix.Close(w.dir) }()
	if err := w.toRoot(); err != nil {
		return nil, err
	}
	rest, links := strings.Split(path, "/"), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next, link, err := w.step(name)
		if err != nil {
			return nil, err
		}
		if link != "" {
			if links++; links > maxLinks {
				return nil, &os.PathError{Op: "open", Path: path, Err: unix.ELOOP}
			}
			if filepath.IsAbs(link) {
				if err := w.toRoot(); err != nil {
					return nil, err
				}
			}
			rest = append(strings.Split(link, "/"), rest...)
			continue
		}
		if !isLast(rest) {
			_ = unix.Close(w.dir)
			w.dir, w.at = next, filepath.Join(w.at, name)
			continue
		}
		_ = unix.Close(next)
		if flags == unix.O_PATH {
			return nil, nil
		}
		fd, err := unix.Openat(w.dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
	return nil, &os.PathError{Op: "open", Path: path, Err: unix.EISDIR}
}

// isLast reports whether rest has no components except empty ones and ".".
func isLast(rest []string) bool {
	for _, name := range rest {
		if name != "" && name != "." {
			return false
		}
	}
	return true
}

func (w *rootWalk) toRoot() error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/", Err: err}
	}
	if w.dir >= 0 {
		_ = unix.Close(w.dir)
	}
	w.dir, w.at = fd, "/"
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: "/", Err: err}
	}
	w.root = st.Dev
	return w.check(fd, st, "/")
}

// step opens one component with O_PATH and checks it. For a symbolic link it returns the target and no valid descriptor.
func (w *rootWalk) step(name string) (fd int, link string, err error) {
	at := filepath.Join(w.at, name)
	fd, err = unix.Openat(w.dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", &os.PathError{Op: "open", Path: at, Err: err}
	}
	defer func() {
		if err != nil || link != "" {
			_ = unix.Close(fd)
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, "", &os.PathError{Op: "stat", Path: at, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return fd, "", w.check(fd, st, at)
	}
	if st.Uid != 0 {
		return -1, "", w.fault(at, fmt.Sprintf("belongs to uid %d", st.Uid))
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", b)
	if err == nil && n == 0 {
		err = errors.New("empty symbolic link")
	}
	if err != nil {
		return -1, "", &os.PathError{Op: "readlink", Path: at, Err: err}
	}
	return fd, string(b[:n]), nil
}

func (w *rootWalk) check(fd int, st unix.Stat_t, at string) error {
	const others = 0o022
	switch {
	case st.Uid != 0:
		return w.fault(at, fmt.Sprintf("belongs to uid %d", st.Uid))
	case st.Mode&others != 0 && (!w.sticky || st.Mode&unix.S_ISVTX == 0 || st.Mode&unix.S_IFMT != unix.S_IFDIR):
		return w.fault(at, fmt.Sprintf("is group- or world-writable (mode %04o)", st.Mode&0o7777))
	case st.Dev != w.root:
		var fs unix.Statfs_t
		if err := unix.Fstatfs(fd, &fs); err != nil {
			return &os.PathError{Op: "statfs", Path: at, Err: err}
		}
		if fs.Type == unix.FUSE_SUPER_MAGIC {
			return w.fault(at, "is on a FUSE file system")
		}
	}
	return nil
}

func (w *rootWalk) fault(at, reason string) error {
	return &NotRootOnlyError{Path: w.path, At: at, Reason: reason}
}
