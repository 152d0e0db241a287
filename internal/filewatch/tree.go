package filewatch

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// Trees watches directories with everything below, and files. A path that does not exist is watched through its closest existing
// parent. Changes through a symbolic link to another place, and on network file systems, are not noticed, so the caller must also look
// from time to time. Its methods may be called concurrently.
type Trees struct {
	paths   []string
	w       *fsnotify.Watcher
	changed chan struct{}
	ended   sync.WaitGroup
}

// NewTrees begins to watch paths, which must be absolute. Close ends the watch.
func NewTrees(paths []string) (*Trees, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch files: %w", err)
	}
	t := &Trees{paths: paths, w: w, changed: make(chan struct{}, 1)}
	t.Refresh()
	t.ended.Go(t.follow)
	return t, nil
}

// Refresh also watches directories that were created since the last call. A directory that cannot be watched is left out.
func (t *Trees) Refresh() {
	for _, root := range t.paths {
		found := false
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // the reader of the files reports it
			}
			found = true
			if d.IsDir() || path == root {
				_ = t.w.Add(path)
			}
			return nil
		})
		for dir := filepath.Dir(root); !found; dir = filepath.Dir(dir) {
			found = t.w.Add(dir) == nil || dir == filepath.Dir(dir)
		}
	}
}

// Changed returns a channel that receives a value after something below the paths was changed. Several changes may result in one value.
func (t *Trees) Changed() <-chan struct{} { return t.changed }

func (t *Trees) follow() {
	for {
		select {
		case e, ok := <-t.w.Events:
			if !ok {
				return
			}
			if !t.concerns(e) {
				continue
			}
		case _, ok := <-t.w.Errors: // events were lost
			if !ok {
				return
			}
		}
		select {
		case t.changed <- struct{}{}:
		default:
		}
	}
}

// concerns reports whether an event is about a path, or about something below or above it.
func (t *Trees) concerns(e fsnotify.Event) bool {
	if e.Op == fsnotify.Chmod {
		return slices.Contains(t.paths, e.Name) // it may have become readable
	}
	return slices.ContainsFunc(t.paths, func(p string) bool { return isBelow(e.Name, p) || isBelow(p, e.Name) })
}

func isBelow(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// Close ends the watch.
func (t *Trees) Close() {
	_ = t.w.Close() // nothing was written
	t.ended.Wait()
}
