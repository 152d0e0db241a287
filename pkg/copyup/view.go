package copyup

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// originalPrefix is the prefix of the name at which RootlessKit binds the original (pkg/copyup/tmpfssymlink of RootlessKit
// v3). A number follows it.
const originalPrefix = ".ro"

// liveView is the file system of this mount namespace.
type liveView struct{}

// Original returns the real directory that has RootlessKit's form of name. A directory of the host with such a name, as in a
// node inside a node, is a link and is ignored.
func (liveView) Original(root string) (string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return "", err
	}
	found := ""
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), originalPrefix)
		if !ok || !e.IsDir() || number == "" || strings.Trim(number, "0123456789") != "" {
			continue
		}
		if entry, err := (liveView{}).Lstat(path.Join(root, e.Name())); err != nil || !entry.Mounted {
			continue // created by a program inside
		}
		if found != "" {
			return "", fmt.Errorf("two candidates in %s: %s and %s", root, found, e.Name())
		}
		found = e.Name()
	}
	if found == "" {
		return "", fmt.Errorf("no directory %s<number> in %s: it is not copied up", originalPrefix, root)
	}
	return found, nil
}

func (liveView) Lstat(name string) (Entry, error) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if err := unix.Statx(unix.AT_FDCWD, name, flags, unix.STATX_TYPE|unix.STATX_MODE, &st); err != nil {
		return Entry{}, &fs.PathError{Op: "statx", Path: name, Err: err}
	}
	e := Entry{
		Name:    path.Base(name),
		Mode:    fileMode(st.Mode),
		Mounted: st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
	}
	err := readLink(name, &e)
	return e, err
}

func (liveView) ReadDir(name string) ([]Entry, error) {
	list, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, len(list))
	for i, d := range list {
		entries[i] = Entry{Name: d.Name(), Mode: d.Type()}
		if err := readLink(path.Join(name, d.Name()), &entries[i]); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

func readLink(name string, e *Entry) (err error) {
	if e.isLink() {
		e.Link, err = os.Readlink(name)
	}
	return err
}

func fileMode(mode uint16) fs.FileMode {
	m := fs.FileMode(mode) & fs.ModePerm
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		m |= fs.ModeDir
	case unix.S_IFLNK:
		m |= fs.ModeSymlink
	default:
		m |= fs.ModeIrregular
	}
	if mode&unix.S_ISVTX != 0 {
		m |= fs.ModeSticky
	}
	if mode&unix.S_ISGID != 0 {
		m |= fs.ModeSetgid
	}
	if mode&unix.S_ISUID != 0 {
		m |= fs.ModeSetuid
	}
	return m
}
