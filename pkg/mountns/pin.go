package mountns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// ID tells mount namespaces apart: the device and inode of their file in /proc (namespaces(7)).
type ID struct{ Dev, Ino uint64 }

// String is what readlink says of the namespace's file in /proc.
func (id ID) String() string { return fmt.Sprintf("mnt:[%d]", id.Ino) }

// record is what the file below a pin says. Inside, where the kernel hides pins of mount namespaces, it tells a process
// which one it is in.
func (id ID) record() string { return fmt.Sprintf("%d:%d\n", id.Dev, id.Ino) }

// idOf is the namespace of a path or link in /proc/PID/ns.
func idOf(path string) (ID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ID{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return ID{st.Dev, st.Ino}, nil
}

// ownID is the namespace of this process.
func ownID() (ID, error) { return idOf("/proc/self/ns/mnt") }

// pinState is what is found at the path of a pin.
type pinState int

const (
	absent pinState = iota
	// stale: a plain file that nothing is mounted on: a create that was cut short, or a pin unmounted by hand.
	stale
	// own: the record of the namespace in which this process lives.
	own
	pinned
)

// openPin looks at the pin of name. The file is open only when it is pinned.
func (s *Store) openPin(name string) (*os.File, pinState, error) {
	f, err := os.Open(s.Pin(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, absent, nil
	}
	if err != nil {
		return nil, absent, privilege(err)
	}
	state, err := s.pinStateOf(f)
	if err != nil || state != pinned {
		return nil, state, errors.Join(err, f.Close())
	}
	return f, pinned, nil
}

func (s *Store) pinStateOf(f *os.File) (pinState, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return absent, fmt.Errorf("statfs %s: %w", f.Name(), err)
	}
	if st.Type != unix.NSFS_MAGIC {
		return plainState(f)
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil {
		return absent, fmt.Errorf("ask for the kind of namespace at %s: %w", f.Name(), err)
	}
	if kind != unix.CLONE_NEWNS {
		return absent, errdefs.WithHint(fmt.Errorf("%s holds a namespace of another kind", f.Name()), "umount "+f.Name())
	}
	return pinned, nil
}

// plainState tells a leftover from the record of the namespace we are in.
func plainState(f *os.File) (pinState, error) {
	if info, err := f.Stat(); err != nil {
		return absent, err
	} else if !info.Mode().IsRegular() {
		return absent, fmt.Errorf("%s is not a pin of ours: %s", f.Name(), info.Mode())
	}
	const enough = 64
	text := make([]byte, enough)
	n, _ := f.Read(text) // an empty file is a leftover too
	id, err := ownID()
	if err != nil {
		return absent, err
	}
	if string(text[:n]) == id.record() {
		return own, nil
	}
	return stale, nil
}

// names lists the entries of the directory of pins.
func (s *Store) names() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, privilege(err)
	}
	var names []string
	for _, e := range entries {
		if nameForm.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// refuseInside fails when this process lives in one of the namespaces: from there the pins cannot be seen, and a pin
// made there would not be seen by the host.
func (s *Store) refuseInside() error {
	names, err := s.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		f, state, err := s.openPin(name)
		if err == nil && f != nil {
			err = f.Close()
		}
		if err == nil && state == own {
			return errInside(name)
		}
	}
	return nil
}

func errInside(name string) error {
	return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("this process lives in mount namespace %s itself", name)),
		"run it on the host: nsenter --target 1 --mount -- rootlessnode mountns ...")
}

// ensureDir makes the directory of pins a private mount of its own: the kernel refuses a pin that would propagate.
func (s *Store) ensureDir() error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return privilege(err)
	}
	mounts, err := s.mountsAt(s.dir)
	if err != nil {
		return err
	}
	if len(mounts) == 0 {
		if err := unix.Mount(s.dir, s.dir, "", unix.MS_BIND, ""); err != nil {
			return privilege(fmt.Errorf("bind %s to itself: %w", s.dir, err))
		}
	} else if mounts[len(mounts)-1].Optional == "" {
		return nil
	}
	if err := unix.Mount("none", s.dir, "", unix.MS_PRIVATE, ""); err != nil {
		return privilege(fmt.Errorf("make the mount of %s private: %w", s.dir, err))
	}
	return nil
}

// mountsAt lists the mounts whose mount point is path, lowest first.
func (s *Store) mountsAt(path string) ([]*mountinfo.Info, error) {
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != path, false })
}

// pin binds the namespace that ns holds to the path of name. There must be no pin.
func (s *Store) pin(name string, ns *os.File) error {
	id, err := idOf(fdPath(ns))
	if err != nil {
		return err
	}
	path := s.Pin(name)
	// A new file, not the stale one: that may be open, or linked from elsewhere.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return privilege(err)
	}
	if err := os.WriteFile(path, []byte(id.record()), 0o444); err != nil {
		return privilege(err)
	}
	if err := unix.Mount(fdPath(ns), path, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(privilege(fmt.Errorf("pin the mount namespace to %s: %w", path, err)), os.Remove(path))
	}
	return nil
}

func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// unpin takes the pin of name away, however many were stacked by others, and the directory's own mount with the last one.
func (s *Store) unpin(name string) error {
	for {
		f, state, err := s.openPin(name)
		if err != nil {
			return err
		}
		if state != pinned {
			break
		}
		_ = f.Close()
		if err := unix.Unmount(s.Pin(name), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return privilege(fmt.Errorf("unmount %s: %w", s.Pin(name), err))
		}
	}
	if err := os.Remove(s.Pin(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return privilege(err)
	}
	return s.removeEmptyDir()
}

func (s *Store) removeEmptyDir() error {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) || len(entries) > 0 {
		return nil
	}
	mounts, err := s.mountsAt(s.dir)
	if err != nil {
		return err
	}
	for range mounts {
		if err := unix.Unmount(s.dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return privilege(fmt.Errorf("unmount %s: %w", s.dir, err))
		}
	}
	return os.Remove(s.dir)
}

// lock lets one at a time change pins. It is on the parent directory, which stays: a lock file would have to.
func (s *Store) lock() (unlock func(), err error) {
	parent := filepath.Dir(s.dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, privilege(err)
	}
	f, err := os.Open(parent)
	if err != nil {
		return nil, privilege(err)
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", parent, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// stacked refuses a path with several mounts on it: which of them a program entered depends on when it did.
func (s *Store) stacked(name string) error {
	mounts, err := s.mountsAt(s.Pin(name))
	if err != nil || len(mounts) < 2 {
		return err
	}
	var ids []string
	for _, m := range mounts {
		ids = append(ids, strings.TrimPrefix(m.Root, "/"))
	}
	return errdefs.WithHint(fmt.Errorf("%d mounts are stacked at %s (%s)", len(mounts), s.Pin(name), strings.Join(slices.Compact(ids), ", ")),
		"umount "+s.Pin(name)+"   # until one is left, the one with the kubelet in it")
}
