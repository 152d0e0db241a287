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

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Registry remembers where the account's nodes keep their data, so that a command that is given only a node's name finds the
// data dir that the node was started with. Each node has a file of its own (layout.RegistryEntry).
type Registry struct {
	// XDGDataHome is where the registry is.
	XDGDataHome string
}

// Entry is what the registry has of one node.
type Entry struct {
	Name string `json:"name"`
	// DataDirs are absolute paths without links, the one of the last start first. A node has more than one after it was
	// started with another dataDir than before.
	DataDirs []string `json:"dataDirs"`
}

// Find returns the data dirs of node name, the one of the last start first; none for a node that the registry does not have.
//
// Errors: of class ErrConfig for an entry that cannot be read.
func (r Registry) Find(name string) ([]string, error) {
	path := r.path(name)
	if path == "" {
		return nil, nil
	}
	b, _, err := readRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var e Entry
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err == nil && (e.Name != name || slices.ContainsFunc(e.DataDirs, func(d string) bool { return !filepath.IsAbs(d) })) {
		err = fmt.Errorf("not an entry of node %q", name)
	}
	if err != nil {
		return nil, errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("read the registry entry %s: %w", path, err)),
			"# remove it, and name the data dir at the next start:\nrm "+hostinfo.Quote(path)+"\nrootlessnode --name "+hostinfo.Quote(name)+" up --data-dir DIR")
	}
	return e.DataDirs, nil
}

// path is empty for a name that is not a file's name. The configuration's validation reports such a name.
func (r Registry) path(name string) string {
	if r.XDGDataHome == "" || name == "" || name[0] == '.' || strings.ContainsRune(name, '/') {
		return ""
	}
	return layout.RegistryEntry(r.XDGDataHome, name)
}

// Put records dir, an absolute path without links, as the data dir of node name. Data dirs that no longer exist are dropped.
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

// Drop forgets dir as a data dir of node name.
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
	_ = os.Remove(layout.RegistryDir(r.XDGDataHome)) // if it is empty
	return nil
}

func (r Registry) write(name string, dirs []string) error {
	path := r.path(name)
	if path == "" {
		return nil
	}
	b, err := json.Marshal(Entry{Name: name, DataDirs: dirs})
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = writeDurably(path, append(b, '\n'), true)
	}
	if err != nil {
		return errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("write the registry entry of node %q: %w", name, err))
	}
	return nil
}

// all are the entries that can be read: one that cannot must not keep other nodes from starting.
func (r Registry) all() []Entry {
	if r.XDGDataHome == "" {
		return nil
	}
	files, _ := os.ReadDir(layout.RegistryDir(r.XDGDataHome)) // without a registry there are no entries
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
