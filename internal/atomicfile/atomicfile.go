// Package atomicfile creates and replaces files atomically: a reader sees the old content or the new content, never a part of it. The
// content is written to a temporary file in the same directory, which is then renamed. A symbolic link at the path is replaced, not
// followed. All functions may be called concurrently.
//
// Runs in: any process.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Options selects what Write guarantees beyond atomicity.
type Options struct {
	// Durable syncs the file and its directory, so that the file survives a crash of the host. This takes milliseconds on a disk. Without it,
	// the file may be empty after a crash.
	Durable bool
	// New requires that the path does not exist. Otherwise the error is fs.ErrExist.
	New bool
	// Keep keeps the permission bits, the owner and the SELinux label of an existing file.
	Keep bool
}

// Write replaces path with a file that has the permission bits perm, independent of the umask. The directory of path must exist.
func Write(path string, data []byte, perm fs.FileMode) error {
	return Options{}.Write(path, data, perm)
}

// Write is like the function Write, with the guarantees of o.
func (o Options) Write(path string, data []byte, perm fs.FileMode) error {
	s, err := o.Stage(path, data, perm)
	if err != nil {
		return err
	}
	defer s.Discard()
	return s.Commit()
}

// Symlink replaces path with a symbolic link to target.
func Symlink(target, path string) error {
	s, err := StageSymlink(target, path)
	if err != nil {
		return err
	}
	defer s.Discard()
	return s.Commit()
}

// Staged is a file or symbolic link that has a temporary name until Commit. Several can be prepared before any is visible.
type Staged struct {
	o          Options
	temp, path string
}

// Stage is the first half of Write: it writes the file under a temporary name, ".NAME." and digits.
func (o Options) Stage(path string, data []byte, perm fs.FileMode) (*Staged, error) {
	f, err := createTemp(path)
	if err != nil {
		return nil, err
	}
	s := &Staged{o, f.Name(), path}
	_, err = f.Write(data)
	if o.Keep {
		perm, err = keepOwner(f, path, perm, err)
	}
	err = errors.Join(err, f.Chmod(perm.Perm()))
	if o.Durable && err == nil {
		err = f.Sync() // otherwise the rename may reach the disk before the data
	}
	if err = errors.Join(err, f.Close()); err != nil {
		s.Discard()
		return nil, err
	}
	return s, nil
}

// StageSymlink is the first half of Symlink.
func StageSymlink(target, path string) (*Staged, error) {
	f, err := createTemp(path)
	if err != nil {
		return nil, err
	}
	s := &Staged{temp: f.Name(), path: path}
	if err := errors.Join(f.Close(), os.Remove(s.temp), os.Symlink(target, s.temp)); err != nil {
		return nil, err
	}
	return s, nil
}

// createTemp creates a file for path. Its mode is 0600, so that a secret is never readable by others.
func createTemp(path string) (*os.File, error) {
	return os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
}

// keepOwner sets the owner and the SELinux label of f to those of path, if path exists, and returns the permission bits of path, or perm. The error
// err is returned first.
func keepOwner(f *os.File, path string, perm fs.FileMode, err error) (fs.FileMode, error) {
	var old, own unix.Stat_t
	switch statErr := unix.Lstat(path, &old); {
	case errors.Is(statErr, fs.ErrNotExist):
		return perm, err
	case statErr != nil:
		return perm, errors.Join(err, &fs.PathError{Op: "stat", Path: path, Err: statErr})
	}
	err = errors.Join(err, unix.Fstat(int(f.Fd()), &own))
	if old.Uid != own.Uid || old.Gid != own.Gid {
		err = errors.Join(err, f.Chown(int(old.Uid), int(old.Gid)))
	}
	const label = "security.selinux"
	want, have := make([]byte, unix.PathMax), make([]byte, unix.PathMax)
	if n, getErr := unix.Lgetxattr(path, label, want); getErr == nil {
		m, _ := unix.Fgetxattr(int(f.Fd()), label, have) // 0 or less on error
		if string(want[:n]) != string(have[:max(m, 0)]) {
			err = errors.Join(err, unix.Fsetxattr(int(f.Fd()), label, want[:n], 0))
		}
	}
	return fs.FileMode(old.Mode).Perm(), err
}

// Commit renames the file to its path.
func (s *Staged) Commit() error {
	if err := s.rename(); err != nil || !s.o.Durable {
		return err
	}
	return SyncDir(filepath.Dir(s.path))
}

// RenameDir renames a directory, so that it survives a crash of the host under its new name. The new name must not exist, or be an empty
// directory.
func RenameDir(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncDir writes the entries of a directory to the disk, so that they survive a crash of the host.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	err = dir.Sync()
	if errors.Is(err, unix.EINVAL) { // a file system that cannot sync directories
		err = nil
	}
	return errors.Join(err, dir.Close())
}

func (s *Staged) rename() error {
	if !s.o.New {
		return os.Rename(s.temp, s.path)
	}
	err := unix.Renameat2(unix.AT_FDCWD, s.temp, unix.AT_FDCWD, s.path, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) { // a file system without RENAME_NOREPLACE
		return os.Link(s.temp, s.path)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: s.temp, New: s.path, Err: err}
	}
	return nil
}

// Discard removes the temporary file. It does nothing after a successful Commit.
func (s *Staged) Discard() { _ = os.Remove(s.temp) }
