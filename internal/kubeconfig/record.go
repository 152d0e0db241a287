package kubeconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// record describes a kubeconfig with entries of nodes before the first one was added, so that the file is as before when the last one is
// removed. It contains no secrets.
type record struct {
	Path string `json:"path"`
	// Names are the names of the entries.
	Names []string `json:"names"`
	// Created is true if the file did not exist, and MadeDir if its directory did not exist.
	Created bool `json:"created,omitempty"`
	MadeDir bool `json:"madeDir,omitempty"`
	// Original is the content of a file that had only comments.
	Original *string `json:"original,omitempty"`
	// Forms has the text of keys of the file that had no value. See edit.
	Forms map[string]*string `json:"forms,omitempty"`
}

func (r *record) add(name string) {
	if !slices.Contains(r.Names, name) {
		r.Names = append(r.Names, name)
	}
}

// load returns the record of a file with the given content, or nil. Names whose entries are no longer in the file are dropped.
func (f Files) load(path string, text []byte) (*record, error) {
	var r record
	err := layout.ReadState(f.recordOf(path), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	now := &edit{text: text}
	r.Names = slices.DeleteFunc(r.Names, func(name string) bool { return !now.has(name) })
	if len(r.Names) == 0 {
		return nil, nil
	}
	return &r, nil
}

// save writes the record, or removes it if the file has no more entries of nodes.
func (f Files) save(r *record) error {
	path := f.recordOf(r.Path)
	if len(r.Names) == 0 {
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		_ = os.Remove(f.Records) // if it is empty
		return err
	}
	if err := os.MkdirAll(f.Records, 0o700); err != nil {
		return err
	}
	return layout.WriteState(path, r)
}

// drop removes a name from the record of a file that does not exist.
func (f Files) drop(path, name string) error {
	var r record
	if err := layout.ReadState(f.recordOf(path), &r); err != nil {
		return err
	}
	r.Names = slices.DeleteFunc(r.Names, func(n string) bool { return n == name })
	return f.save(&r)
}

// recorded returns the files to which entries called name were added.
func (f Files) recorded(name string) ([]string, error) {
	files, err := os.ReadDir(f.Records)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var paths []string
	for _, entry := range files {
		var r record
		if readErr := layout.ReadState(filepath.Join(f.Records, entry.Name()), &r); readErr != nil {
			err = errors.Join(err, readErr)
			continue
		}
		if slices.Contains(r.Names, name) {
			paths = append(paths, r.Path)
		}
	}
	return paths, err
}

func (f Files) recordOf(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(f.Records, hex.EncodeToString(sum[:8])+".json")
}
