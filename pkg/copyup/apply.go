package copyup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// applier applies steps. It opens every path relative to the descriptor of its copied-up directory, element by element and
// without following links, so that a step can never change the host's tree.
type applier struct {
	sources []*os.File          // one for each bind, opened before copy-up
	bases   map[string]*os.File // persistent bases by copied-up directory
	roots   map[string]*tree
}

// tree is a copied-up directory.
type tree struct {
	dir *os.File
	dev uint64
}

func newApplier(sources []*os.File, bases map[string]*os.File) *applier {
	return &applier{sources: sources, bases: bases, roots: map[string]*tree{}}
}

func (a *applier) close() {
	for _, t := range a.roots {
		_ = t.dir.Close()
	}
}

func (a *applier) apply(s Step) error {
	t, err := a.tree(s.Root)
	if err != nil {
		return err
	}
	if s.Op == OpChmod && s.Path == s.Root {
		return unix.Chmod(proc.FDPath(t.dir), modeBits(s.Mode))
	}
	parent, err := t.walk(path.Dir(s.Path), s.Root, s.Bound)
	if err != nil {
		return err
	}
	defer parent.Close()
	fd, name := int(parent.Fd()), path.Base(s.Path)
	switch s.Op {
	case OpRemove:
		return unix.Unlinkat(fd, name, 0)
	case OpLink:
		return unix.Symlinkat(s.Link, fd, name)
	case OpMakeDir:
		return makeDir(fd, name, s)
	case OpChmod, OpBind:
		dir, err := t.step(parent, name, s.Bound)
		if err != nil {
			return err
		}
		defer dir.Close()
		if s.Op == OpChmod {
			return unix.Chmod(proc.FDPath(dir), modeBits(s.Mode))
		}
		return a.bind(dir, s)
	}
	return errors.New("unknown operation")
}

func makeDir(parent int, name string, s Step) error {
	err := unix.Mkdirat(parent, name, 0o700)
	if s.Bound && errors.Is(err, unix.EEXIST) {
		return nil // if it is not a directory, the next step in it fails
	}
	if err != nil {
		return err
	}
	return unix.Fchmodat(parent, name, modeBits(s.Mode), 0) // independent of the umask
}

func (a *applier) bind(target *os.File, s Step) error {
	source := a.sources[s.Bind]
	if s.Mode != 0 {
		if err := unix.Chmod(proc.FDPath(source), modeBits(s.Mode)); err != nil {
			return fmt.Errorf("set the mode of %s: %w", source.Name(), err)
		}
	}
	if err := BindKeepingFlags(proc.FDPath(source), proc.FDPath(target), 0); err != nil {
		return fmt.Errorf("%w (source %s)", err, source.Name())
	}
	return nil
}

// tree opens a copied-up directory. It returns an error if that is neither a tmpfs nor its persistent base, because every
// step would then write to the host.
func (a *applier) tree(root string) (*tree, error) {
	if t := a.roots[root]; t != nil {
		return t, nil
	}
	dir, err := openPath(unix.AT_FDCWD, root, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(dir.Fd()), &st); err == nil {
		err = a.checkBase(root, dir, st)
	}
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	t := &tree{dir: dir, dev: st.Dev}
	a.roots[root] = t
	return t, nil
}

// checkBase returns an error if an open directory is not the base of root.
func (a *applier) checkBase(root string, dir *os.File, st unix.Stat_t) error {
	if base := a.bases[root]; base != nil {
		var want unix.Stat_t
		if err := unix.Fstat(int(base.Fd()), &want); err != nil {
			return err
		}
		if st.Dev != want.Dev || st.Ino != want.Ino {
			return fmt.Errorf("%s is not on its persistent base", root)
		}
		return nil
	}
	var fsStat unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &fsStat); err != nil {
		return err
	}
	if int64(fsStat.Type) != unix.TMPFS_MAGIC { //nolint:unconvert // its type is another one on other architectures
		return fmt.Errorf("%s is not a tmpfs", root)
	}
	return nil
}

// walk opens the directory name, which is root or below it. The caller closes it.
func (t *tree) walk(name, root string, bound bool) (*os.File, error) {
	at, err := openPath(int(t.dir.Fd()), ".", unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	rest := strings.TrimPrefix(name, root)
	for element := range strings.SplitSeq(strings.Trim(rest, "/"), "/") {
		if element == "" {
			continue
		}
		next, err := t.step(at, element, bound)
		_ = at.Close()
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

// step opens the directory name in at, without following a link. Unless bound is set, the directory must be on the base.
func (t *tree) step(at *os.File, name string, bound bool) (*os.File, error) {
	dir, err := openPath(int(at.Fd()), name, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(dir.Fd()), &st)
	if err == nil && !bound && st.Dev != t.dev {
		err = fmt.Errorf("%s is not on the base of the copied-up directory", name)
	}
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

func openPath(at int, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
