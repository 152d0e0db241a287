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

// FollowHost keeps the entries of copied-up directories what they are on the host until ctx ends: what the host makes at
// the top of one, or in a directory that became real because something in it had to, appears inside as a link; and with
// it, since the original is there, what the host mounts on it. A link that FollowHost made goes when the host removes the
// entry. What stands inside is left alone, and so are the directories that components own. ready is called when nothing
// that is made from then on is missed.
//
// Runs in: child, after copy-up, beside the components.
func FollowHost(ctx context.Context, s Spec, ready func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("follow the host's directories: %w", err)
	}
	defer func() { _ = w.Close() }() // nothing was written
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

// followed is a directory inside and where its original is.
type followed struct {
	root, path string
	persistent bool
	original   string // set by add
	base       string // of links in path, in front of a name
}

// followedDirs are the copied-up directories, and those below them that are real only for the sake of what is in them. It
// is pure.
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
	made map[string]bool     // links of ours, by their paths inside
}

// add finds the original of a directory and watches it. One that was not copied up, because the host does not have it or
// it is a link there, is left out.
func (f *follower) add(w *fsnotify.Watcher, d followed) error {
	original, err := liveView{}.Original(d.root)
	if err != nil {
		return nil //nolint:nilerr // it lies below another that was copied up, and is followed as part of that
	}
	if err := checkReal(d); err != nil {
		return nil //nolint:nilerr // it is not ours to change
	}
	rest := strings.TrimPrefix(d.path, d.root)
	d.original = path.Join(d.root, original) + rest
	d.base = strings.Repeat("../", strings.Count(rest, "/")) + original + rest + "/"
	err = w.Add(d.original)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil // the host has none, or nobody of ours may look
	}
	f.dirs[d.original] = d
	return err
}

// checkReal refuses a directory that does not lie, with no link on the way, on the base of its copied-up directory.
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

// all looks at every entry.
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

// entry makes one name inside follow the host's.
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
	if info.Mode()&fs.ModeSymlink != 0 { // at its old place it resolves as it did
		if text, err = os.Readlink(path.Join(d.original, name)); err != nil {
			return nil //nolint:nilerr // it has gone meanwhile, and that is told too
		}
	}
	if d.persistent {
		text = ourLink(text)
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
		return nil //nolint:nilerr // it has gone meanwhile, or is covered
	}
	if err := mountCover(original, e.Mode); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cover %s: %w", name, err)
	}
	return nil
}

// remove takes a link away, if it still is one.
func (f *follower) remove(link string) error {
	info, err := os.Lstat(link)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return nil //nolint:nilerr // somebody inside has put something else there
	}
	return os.Remove(link)
}
