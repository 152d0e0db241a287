package copyup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// persistentOriginal is the name at which the original of a directory with a persistent base is bound. It has the form of
// RootlessKit's names. It is constant, so that the links of the last start remain valid.
const persistentOriginal = originalPrefix + "1"

// openBases creates and opens the persistent bases.
func openBases(s Spec, roots []string) (map[string]*os.File, error) {
	bases := map[string]*os.File{}
	for _, root := range roots {
		if !s.persistent(root) {
			continue
		}
		base, err := openBase(s.Persist, root)
		if err != nil {
			return bases, fmt.Errorf("create the persistent base of %s: %w", root, err)
		}
		bases[root] = base
	}
	return bases, nil
}

// openBase creates and opens the base of root. It follows no link at or below persist, because programs inside may write
// there.
func openBase(persist, root string) (*os.File, error) {
	at, err := openPath(unix.AT_FDCWD, path.Dir(persist), 0)
	if err != nil {
		return nil, err
	}
	for element := range strings.SplitSeq(path.Base(persist)+root, "/") {
		err := unix.Mkdirat(int(at.Fd()), element, 0o755)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			err = &os.PathError{Op: "mkdir", Path: path.Join(persist, root), Err: err}
		} else {
			err = nil
		}
		var next *os.File
		if err == nil {
			next, err = openPath(int(at.Fd()), element, unix.O_NOFOLLOW)
		}
		_ = at.Close()
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

// copyUpOnto binds base over dir and the original below it. planLinks creates the links later.
func (d *Driver) copyUpOnto(dir string, base *os.File) error {
	scratch, err := os.MkdirTemp(d.scratch, "original-")
	if err != nil {
		return err
	}
	if err := BindKeepingFlags(dir, scratch, 0); err != nil {
		return err
	}
	if err := unix.Mkdirat(int(base.Fd()), persistentOriginal, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create %s: %w", persistentOriginal, err)
	}
	if err := BindKeepingFlags(proc.FDPath(base), dir, 0); err != nil {
		return err
	}
	original, err := openPath(unix.AT_FDCWD, path.Join(dir, persistentOriginal), unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer original.Close()
	if err := unix.Mount(scratch, proc.FDPath(original), "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the original below the base: %w", err)
	}
	return nil
}

// removeRewritten removes the files of Spec.Rewritten that exist from the last run.
func (a *applier) removeRewritten(s Spec) error {
	for _, name := range s.Rewritten {
		root := ""
		for r := range a.bases {
			if within(name, r) {
				root = r
			}
		}
		if root == "" {
			continue
		}
		if err := a.removeFile(root, name); err != nil {
			return fmt.Errorf("remove %s from the last run: %w", name, err)
		}
	}
	return nil
}

func (a *applier) removeFile(root, name string) error {
	t, err := a.tree(root)
	if err != nil {
		return err
	}
	dir, err := t.walk(path.Dir(name), root, false)
	if isMissing(err) {
		return nil // a link, or missing
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	var st unix.Stat_t
	err = unix.Fstatat(int(dir.Fd()), path.Base(name), &st, unix.AT_SYMLINK_NOFOLLOW)
	if isMissing(err) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.Unlinkat(int(dir.Fd()), path.Base(name), 0)
}

// mergeable returns the directories of Spec.Merged that must be real: those that are already real on the base, and those of
// the host that are not writable inside.
func mergeable(s Spec, roots map[string]string) []string {
	return slices.DeleteFunc(slices.Clone(s.Merged), func(name string) bool {
		for root, original := range roots {
			if !s.persistent(root) || !within(name, root) || name == root {
				continue
			}
			if info, err := os.Lstat(name); err == nil && info.IsDir() {
				return false
			}
			original := path.Join(root, original, name[len(root):])
			info, err := os.Lstat(original)
			return err != nil || !info.IsDir() || unix.Access(original, unix.W_OK) == nil
		}
		return true
	})
}
