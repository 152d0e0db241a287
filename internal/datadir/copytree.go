package datadir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// spareSpace is the space in bytes that must stay free after a snapshot, for the start of the node.
const spareSpace = 128 << 20

// checkSpace returns an error if the file system of the data dir has no space for another copy of size bytes.
func checkSpace(d layout.Data, size int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(d.Dir, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", d.Dir, err)
	}
	free := int64(st.Bavail) * st.Bsize
	if free < size+spareSpace {
		return fmt.Errorf("%d MiB needed, but %d MiB are free: %w", (size+spareSpace)>>20, free>>20, unix.ENOSPC)
	}
	return nil
}

// treeSize returns the size of all files below dir in bytes.
//
// Errors: fs.ErrNotExist if dir does not exist.
func treeSize(dir string) (size int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return size, err
}

// copyTree copies the directories and regular files below from to the new directory to, with their permission bits. The copy survives a
// crash of the host. Files share their blocks with the originals on file systems that can do so (copy_file_range(2)).
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case e.IsDir():
			if err := os.Mkdir(target, info.Mode().Perm()); err != nil {
				return err
			}
			return atomicfile.SyncDir(filepath.Dir(target))
		case e.Type().IsRegular():
			return copyFile(path, target, info.Mode().Perm())
		}
		return fmt.Errorf("%s is neither a regular file nor a directory", path)
	})
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return atomicfile.SyncDir(filepath.Dir(to))
}
