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

	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// ID identifies a namespace: the device and inode of its file in /proc (namespaces(7)).
type ID struct{ Dev, Ino uint64 }

// String returns the ID in the form of readlink on the namespace's file in /proc.
func (id ID) String() string { return fmt.Sprintf("mnt:[%d]", id.Ino) }

// record returns the content of the file below a pin. Inside, where the kernel hides pins of mount namespaces, a process
// identifies its own namespace by it.
func (id ID) record() string { return fmt.Sprintf("%d:%d\n", id.Dev, id.Ino) }

// idOf returns the namespace of a path or link in /proc/PID/ns.
func idOf(path string) (ID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ID{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return ID{st.Dev, st.Ino}, nil
}

// ownID returns the mount namespace of this process.
func ownID() (ID, error) { return idOf("/proc/self/ns/mnt") }

// pinState is the state of the path of a pin.
type pinState int

const (
	absent pinState = iota
	// stale: a plain file without a mount, after an interrupted Create or a manual unmount.
	stale
	// own: the record of the namespace that this process is in.
	own
	pinned
)

// pins is a directory of pinned namespaces, with one file for each, on which the namespace is mounted.
type pins struct{ dir string }

func (p pins) path(name string) string { return filepath.Join(p.dir, name) }

// openPin returns the state of the pin of name. It returns an open file only in the state pinned.
func (p pins) openPin(name string) (*os.File, pinState, error) {
	f, err := os.Open(p.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, absent, nil
	}
	if err != nil {
		return nil, absent, privilege(err)
	}
	state, err := p.pinStateOf(f)
	if err != nil || state != pinned {
		return nil, state, errors.Join(err, f.Close())
	}
	return f, pinned, nil
}

func (p pins) pinStateOf(f *os.File) (pinState, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return absent, fmt.Errorf("statfs %s: %w", f.Name(), err)
	}
	if st.Type != unix.NSFS_MAGIC {
		return plainState(f)
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil {
		return absent, fmt.Errorf("read the type of the namespace at %s: %w", f.Name(), err)
	}
	if kind != unix.CLONE_NEWNS {
		return absent, errdefs.Errorf("%s pins a namespace of another type", f.Name()).Hint("umount " + f.Name())
	}
	return pinned, nil
}

// plainState returns own if the file is the record of this process's namespace, and stale otherwise.
func plainState(f *os.File) (pinState, error) {
	if info, err := f.Stat(); err != nil {
		return absent, err
	} else if !info.Mode().IsRegular() {
		return absent, fmt.Errorf("%s is not a pin: %s", f.Name(), info.Mode())
	}
	const enough = 64
	text := make([]byte, enough)
	n, _ := f.Read(text) // an empty file is stale too
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
func (p pins) names() ([]string, error) {
	entries, err := os.ReadDir(p.dir)
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

// refuseInside returns an error if this process is in one of the namespaces, because pins are not visible there, and a pin
// created there would not be visible on the host.
func (p pins) refuseInside() error {
	names, err := p.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		f, state, err := p.openPin(name)
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
	return errdefs.Preflight("this process is itself in mount namespace %s", name).
		Hint("run it on the host: nsenter --target 1 --mount -- COMMAND")
}

// ensureDir creates the directory of pins and makes it a private mount, because the kernel refuses a pin that would propagate.
func (p pins) ensureDir() error {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return privilege(err)
	}
	mounts, err := p.mountsAt(p.dir)
	if err != nil {
		return err
	}
	if len(mounts) == 0 {
		if err := unix.Mount(p.dir, p.dir, "", unix.MS_BIND, ""); err != nil {
			return privilege(fmt.Errorf("bind %s to itself: %w", p.dir, err))
		}
	} else if mounts[len(mounts)-1].Optional == "" {
		return nil
	}
	if err := unix.Mount("none", p.dir, "", unix.MS_PRIVATE, ""); err != nil {
		return privilege(fmt.Errorf("make the mount of %s private: %w", p.dir, err))
	}
	return nil
}

// mountsAt returns the mounts at path, lowest first.
func (p pins) mountsAt(path string) ([]*mountinfo.Info, error) {
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != path, false })
}

// pin binds the namespace ns to the path of name, which must not be pinned.
func (p pins) pin(name string, ns *os.File) error {
	id, err := idOf(proc.FDPath(ns))
	if err != nil {
		return err
	}
	path := p.path(name)
	// Create a new file, because a stale one may be open, or have other links.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return privilege(err)
	}
	if err := os.WriteFile(path, []byte(id.record()), 0o444); err != nil {
		return privilege(err)
	}
	if err := unix.Mount(proc.FDPath(ns), path, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(privilege(fmt.Errorf("pin the mount namespace to %s: %w", path, err)), os.Remove(path))
	}
	return nil
}

// unpin removes the pin of name, including other mounts stacked on it. With the last pin it also removes the directory.
func (p pins) unpin(name string) error {
	for {
		f, state, err := p.openPin(name)
		if err != nil {
			return err
		}
		if state != pinned {
			break
		}
		_ = f.Close()
		if err := unix.Unmount(p.path(name), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return privilege(fmt.Errorf("unmount %s: %w", p.path(name), err))
		}
	}
	if err := os.Remove(p.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return privilege(err)
	}
	return p.removeEmptyDir()
}

func (p pins) removeEmptyDir() error {
	entries, err := os.ReadDir(p.dir)
	if errors.Is(err, fs.ErrNotExist) || len(entries) > 0 {
		return nil
	}
	mounts, err := p.mountsAt(p.dir)
	if err != nil {
		return err
	}
	for range mounts {
		if err := unix.Unmount(p.dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return privilege(fmt.Errorf("unmount %s: %w", p.dir, err))
		}
	}
	return os.Remove(p.dir)
}

// lock serializes changes of pins. It locks the parent directory, which is never removed, so no lock file is needed.
func (p pins) lock() (unlock func(), err error) {
	parent := filepath.Dir(p.dir)
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

// checkStacked returns an error if several mounts are stacked at the path of name, because programs may have entered
// different ones.
func (p pins) checkStacked(name string) error {
	mounts, err := p.mountsAt(p.path(name))
	if err != nil || len(mounts) < 2 {
		return err
	}
	var ids []string
	for _, m := range mounts {
		ids = append(ids, strings.TrimPrefix(m.Root, "/"))
	}
	return errdefs.Errorf("%d mounts are stacked at %s (%s)", len(mounts), p.path(name), strings.Join(slices.Compact(ids), ", ")).
		Hint("umount " + p.path(name) + "   # repeat until only the one with the kubelet is left")
}
