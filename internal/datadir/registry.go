package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Registry records the data dirs of the account's nodes, so that commands find the data dir of a node by its name. Each node has a file
// (layout.RegistryEntry).
type Registry struct {
	// XDGDataHome is the directory that contains the registry.
	XDGDataHome string
}

// Entry is the registry's entry for a node.
type Entry struct {
	Name string `json:"name"`
	// DataDirs are absolute paths without symbolic links, that of the last start first. A node has several after it was started
	// with different data dirs.
	DataDirs []string `json:"dataDirs"`
}

// Find returns the data dirs of the node called name, that of the last start first. The result is empty if the node is not registered.
//
// Errors: of class errdefs.ErrConfig if the entry is not readable.
func (r Registry) Find(name string) ([]string, error) {
	path := r.path(name)
	if path == "" {
		return nil, nil
	}
	b, _, err := readRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = layout.CheckFormat(path)
	}
	if errors.Is(err, errdefs.ErrConfig) {
		return nil, fmt.Errorf("read the registry entry: %w", err)
	}
	if errors.Is(err, fs.ErrPermission) {
		dir := closedDir(path)
		return nil, errdefs.Config("read the registry entry %s: permission denied in %s", path, dir).
			Hint("# as root:", fmt.Sprintf("chown %d %s", os.Getuid(), hostinfo.Quote(dir)))
	}
	var e Entry
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err == nil && (e.Name != name || slices.ContainsFunc(e.DataDirs, func(d string) bool { return !filepath.IsAbs(d) })) {
		err = fmt.Errorf("not an entry of node %q", name)
	}
	if err != nil {
		return nil, errdefs.Config("read the registry entry %s: %w", path, err).
			Hint("# remove the entry, and set the data dir at the next start:", "rm "+hostinfo.Quote(path)).
			With(errdefs.Hint{{Action: errdefs.Start, Node: name, Args: []string{"dataDir=DIR"}}})
	}
	return e.DataDirs, nil
}

// closedDir returns the directory that prevents the account from reading path.
func closedDir(path string) string {
	dir := filepath.Dir(path)
	for unix.Access(dir, unix.F_OK) != nil && dir != "/" { // a directory above it cannot be searched
		dir = filepath.Dir(dir)
	}
	return dir
}

// path returns the path of the entry, or "" if name is not valid as a file name. The validation of the configuration reports such names.
func (r Registry) path(name string) string {
	if r.XDGDataHome == "" || name == "" || name[0] == '.' || strings.ContainsRune(name, '/') {
		return ""
	}
	return layout.RegistryEntry(r.XDGDataHome, name)
}

// Put records dir, an absolute path without symbolic links, as the data dir of the node called name. It removes data dirs that no longer
// exist from the entry.
func (r Registry) Put(name, dir string) error {
	was, err := r.Find(name)
	if err != nil {
		return err
	}
	now := []string{dir}
	for _, d := range was {
		if _, err := os.Stat(d); err == nil && d != dir {
			now = append(now, d)
		}
	}
	if slices.Equal(was, now) {
		return nil
	}
	return r.write(name, now)
}

// Drop removes dir from the data dirs of the node called name.
func (r Registry) Drop(name, dir string) error {
	was, err := r.Find(name)
	if err != nil || !slices.Contains(was, dir) {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(was), func(d string) bool { return d == dir })
	if len(left) > 0 {
		return r.write(name, left)
	}
	if err := os.Remove(r.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the registry entry of node %q: %w", name, err)
	}
	_ = os.Remove(layout.RegistryDir(r.XDGDataHome)) // only if it is empty
	return nil
}

func (r Registry) write(name string, dirs []string) error {
	path := r.path(name)
	if path == "" {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = layout.WriteState(path, Entry{Name: name, DataDirs: dirs})
	}
	if err != nil {
		return errdefs.Preflight("write the registry entry of node %q: %w", name, err)
	}
	return nil
}

// all returns the entries. It ignores unreadable ones, so that they do not prevent the start of other nodes.
func (r Registry) all() []Entry {
	if r.XDGDataHome == "" {
		return nil
	}
	files, _ := os.ReadDir(layout.RegistryDir(r.XDGDataHome)) // an unreadable registry has no entries
	var entries []Entry
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok {
			continue
		}
		if dirs, err := r.Find(name); err == nil && len(dirs) > 0 {
			entries = append(entries, Entry{name, dirs})
		}
	}
	return entries
}
