package component

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// Write puts files on disk. Each appears whole and with its mode, through a temporary file beside it and a rename; one
// that has the wanted content and mode already is left alone. Parent directories are made with mode 0755. All files are
// tried; the faults are joined.
func Write(files []File) error {
	errs := make([]error, len(files))
	// Side by side, because durable files take their time, and file systems commit many at the price of one.
	var wg sync.WaitGroup
	for i, f := range files {
		wg.Go(func() {
			if err := writeFile(f); err != nil {
				errs[i] = fmt.Errorf("write %s: %w", f.Path, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// MakeDirs makes directories where they are missing and gives those that are there the wanted mode. Parents are made
// with mode 0755. All are tried; the faults are joined.
func MakeDirs(dirs []Dir) error {
	var errs []error
	for _, d := range dirs {
		if err := makeDir(d); err != nil {
			errs = append(errs, fmt.Errorf("make directory %s: %w", d.Path, err))
		}
	}
	return errors.Join(errs...)
}

const parentMode = 0o755

func makeDir(d Dir) error {
	if err := os.MkdirAll(filepath.Dir(d.Path), parentMode); err != nil {
		return err
	}
	if err := os.Mkdir(d.Path, d.Mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Stat(d.Path)
	if err != nil {
		return err
	}
	switch {
	case !info.IsDir():
		return errors.New("it is not a directory")
	case info.Mode().Perm() == d.Mode.Perm():
		return nil
	}
	return os.Chmod(d.Path, d.Mode)
}

func writeFile(f File) error {
	same, err := unchanged(f)
	if err != nil || same {
		return err
	}
	dir := filepath.Dir(f.Path)
	if err := os.MkdirAll(dir, parentMode); err != nil {
		return err
	}
	// CreateTemp makes the file with 0600, so that a secret is never readable for others, not even for a moment.
	tmp, err := os.CreateTemp(dir, ".tmp-"+filepath.Base(f.Path)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // after the rename there is nothing to remove
	if err := fill(tmp, f); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), f.Path); err != nil || !f.Durable {
		return err
	}
	return syncDir(dir)
}

// syncDir brings a rename to the disk.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func fill(tmp *os.File, f File) error {
	_, err := tmp.Write(f.Data)
	if err == nil {
		err = tmp.Chmod(f.Mode)
	}
	if err == nil && f.Durable {
		// A rename may reach the disk before the data does, and leave an empty file after a crash of the host.
		err = tmp.Sync()
	}
	return errors.Join(err, tmp.Close())
}

func unchanged(f File) (bool, error) {
	// A link is replaced: writing through one could reach a file of the host (copy-up leaves such links).
	info, err := os.Lstat(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if info.IsDir() {
		return false, errors.New("it is a directory")
	}
	if info.Mode() != f.Mode.Perm() || info.Size() != int64(len(f.Data)) {
		return false, nil
	}
	old, err := os.Open(f.Path)
	if err != nil {
		return false, err
	}
	defer func() { _ = old.Close() }() // only read
	data, err := io.ReadAll(old)
	return err == nil && bytes.Equal(data, f.Data), err
}
