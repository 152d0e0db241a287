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

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
)

// Write writes files to disk. Each file is replaced atomically by a temporary file in the same directory and a rename.
// A file that already has the wanted content and mode is not written. Parent directories are created with mode 0755.
// All files are attempted, and the errors are joined.
func Write(files []File) error {
	errs := make([]error, len(files))
	// In parallel, because syncing is slow, and file systems can commit many files at once.
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

// MakeDirs creates missing directories and sets the mode of existing ones. Parents are created with mode 0755. All
// directories are attempted, and the errors are joined.
func MakeDirs(dirs []Dir) error {
	var errs []error
	for _, d := range dirs {
		if err := makeDir(d); err != nil {
			errs = append(errs, fmt.Errorf("create directory %s: %w", d.Path, err))
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
		return errors.New("not a directory")
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
	if err := os.MkdirAll(filepath.Dir(f.Path), parentMode); err != nil {
		return err
	}
	return atomicfile.Options{Durable: f.Durable}.Write(f.Path, f.Data, f.Mode)
}

func unchanged(f File) (bool, error) {
	// A symbolic link is replaced, because copy-up creates links to files of the host, which must not be changed.
	info, err := os.Lstat(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if info.IsDir() {
		return false, errors.New("is a directory")
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
