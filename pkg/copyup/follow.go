package copyup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// FollowHost updates the links in copied-up directories until ctx ends. When the host creates an entry at the top of a
// copied-up directory, or in a directory that is real only because of its entries, it creates a link inside. Through that
// link, later mounts of the host on the entry are visible too. When the host removes the entry, FollowHost removes a link that it
// created. It does not change other entries inside, or directories that components own. It calls ready when it watches all
// directories, so that it misses no later change.
//
// Runs in: child, after copy-up, in parallel with the components.
func FollowHost(ctx context.Context, s Spec, ready func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("follow the host's directories: %w", err)
	}
	defer func() { _ = w.Close() }()            // read only
	if roots, err := originals(s); err == nil { // otherwise a directory was not copied up, and add skips it
		s = withEscapes(s, roots)
	}
	f := follower{spec: s, dirs: map[string]followed{}, made: map[string]bool{}}
	for _, dir := range followedDirs(s) {
		if err := f.add(w, dir); err != nil {
			return fmt.Errorf("follow the host's %s: %w", dir.path, err)
		}
	}
	if err := f.all(); err != nil {
		return err
	}
	ready()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.Events:
			d, ok := f.dirs[path.Dir(e.Name)]
			if !ok || e.Op&(fsnotify.Create|fsnotify.Remove|fsnotify.Rename) == 0 {
				continue
			}
			err = f.entry(d, path.Base(e.Name))
		case err = <-w.Errors:
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				err = f.all()
			}
		}
		if err != nil {
			return fmt.Errorf("follow the host's directories: %w", err)
		}
	}
}

// followed is a directory inside with the path of its original.
type followed struct {
	root, path string
	persistent bool
	original   string // set by add
	base       string // prefix of the links in path, followed by a name
}

// followedDirs returns the copied-up directories, and those below them that are real only because of their entries. It is
// pure.
func followedDirs(s Spec) []followed {
	var owned []string
	for _, d := range s.Real {
		owned = append(owned, path.Clean(d.Path))
	}
	for _, b := range s.Binds {
		owned = append(owned, path.Clean(b.Target))
	}
	inOwned := func(name string) bool {
		return slices.ContainsFunc(owned, func(dir string) bool { return within(name, dir) })
	}
	var all []followed
	add := func(root, name string) {
		d := followed{root: root, path: name, persistent: s.persistent(root)}
		if !inOwned(name) && !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	for _, root := range s.CopyUp {
		root = path.Clean(root)
		add(root, root)
		for _, name := range s.Merged {
			if s.persistent(root) && within(name, root) {
				add(root, path.Clean(name))
			}
		}
		for _, name := range owned {
			for dir := path.Dir(name); within(dir, root) && dir != root; dir = path.Dir(dir) {
				add(root, dir)
			}
		}
	}
	return all
}

type follower struct {
	spec Spec
	dirs map[string]followed // by original
	made map[string]bool     // links created by FollowHost, by their paths inside
}

// add finds the original of a directory and watches it. It skips a directory that was not copied up because it does not exist
// on the host or is a link there.
func (f *follower) add(w *fsnotify.Watcher, d followed) error {
	original, err := liveView{}.Original(d.root)
	if err != nil {
		return nil //nolint:nilerr // it is below another copied-up directory and is followed as part of that
	}
	if err := checkReal(d); err != nil {
		return nil //nolint:nilerr // it belongs to the host
	}
	rest := strings.TrimPrefix(d.path, d.root)
	d.original = path.Join(d.root, original) + rest
	d.base = strings.Repeat("../", strings.Count(rest, "/")) + original + rest + "/"
	err = w.Add(d.original)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil // the host does not have it, or it is not readable
	}
	f.dirs[d.original] = d
	return err
}

// checkReal returns an error if a directory is not on the base of its copied-up directory, or is reached through a link.
func checkReal(d followed) error {
	root, err := openPath(unix.AT_FDCWD, d.root, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tree{dir: root}
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return err
	}
	t.dev = st.Dev
	dir, err := t.walk(d.path, d.root, false)
	if err != nil {
		return err
	}
	return dir.Close()
}

// all updates every entry.
func (f *follower) all() error {
	for _, d := range f.dirs {
		entries, err := os.ReadDir(d.original)
		if err != nil {
			return fmt.Errorf("follow the host's directories: %w", err)
		}
		for _, e := range entries {
			if err := f.entry(d, e.Name()); err != nil {
				return err
			}
		}
	}
	for link := range f.made {
		for _, d := range f.dirs {
			if d.path != path.Dir(link) {
				continue
			}
			if err := f.entry(d, path.Base(link)); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry updates the link for one name.
func (f *follower) entry(d followed, name string) error {
	link := path.Join(d.path, name)
	if slices.Contains(staleLinks(), link) || strings.HasPrefix(name, originalPrefix) {
		return nil
	}
	info, err := os.Lstat(path.Join(d.original, name))
	if errors.Is(err, fs.ErrNotExist) {
		if !f.made[link] {
			return nil
		}
		delete(f.made, link)
		return f.remove(link)
	}
	if err != nil {
		return err
	}
	if err := f.cover(link, path.Join(d.original, name)); err != nil {
		return err
	}
	text := d.base + name
	if info.Mode()&fs.ModeSymlink != 0 { // copy a link of the host, so that it resolves to the same path
		if text, err = os.Readlink(path.Join(d.original, name)); err != nil {
			return nil //nolint:nilerr // it was removed meanwhile, which causes another event
		}
	}
	if d.persistent {
		text = managedLink(text)
	}
	if old, err := os.Readlink(link); err == nil && f.made[link] && old != text {
		if err := f.remove(link); err != nil {
			return err
		}
	}
	err = os.Symlink(text, link)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	f.made[link] = err == nil
	return err
}

// cover covers a directory of Spec.Covers that has appeared on the host since the start.
func (f *follower) cover(name, original string) error {
	if !slices.ContainsFunc(f.spec.Covers, func(c Cover) bool { return path.Clean(c.Path) == name }) {
		return nil
	}
	e, err := liveView{}.Lstat(original)
	if err != nil || !e.Mode.IsDir() || e.Mounted {
		return nil //nolint:nilerr // it was removed meanwhile, or is already covered
	}
	if err := mountCover(original, e.Mode); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cover %s: %w", name, err)
	}
	return nil
}

// remove removes link if it is still a link.
func (f *follower) remove(link string) error {
	info, err := os.Lstat(link)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return nil //nolint:nilerr // a program inside has replaced it
	}
	return os.Remove(link)
}
