// Package filewatch waits for changes of the files that pass state between the processes of a node (layout.Files).
//
// Runs in: parent, child or either.
package filewatch

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Watch watches a file whose content is a T. The file is replaced, so its directory is watched; the file need not exist. A change
// between New and Read is not lost. Its methods may be called concurrently.
type Watch[T any] struct {
	path    string
	read    func(path string) (T, error)
	w       *fsnotify.Watcher
	changed chan struct{}
	ended   sync.WaitGroup
}

// New begins to watch the file at the clean path, which read reads, for example os.ReadFile or JSON. The directory must exist. Close
// ends the watch.
func New[T any](path string, read func(path string) (T, error)) (*Watch[T], error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	if err := w.Add(filepath.Dir(path)); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", path, err), w.Close())
	}
	f := &Watch[T]{path: path, read: read, w: w, changed: make(chan struct{}, 1)}
	f.ended.Go(f.follow)
	return f, nil
}

// Read returns the current content, or an error such as fs.ErrNotExist.
func (f *Watch[T]) Read() (T, error) { return f.read(f.path) }

// Changed returns a channel that receives a value after the file was replaced. Several changes may result in one value. Close closes the
// channel.
func (f *Watch[T]) Changed() <-chan struct{} { return f.changed }

// Close ends the watch.
func (f *Watch[T]) Close() {
	_ = f.w.Close() // nothing was written
	f.ended.Wait()
}

func (f *Watch[T]) follow() {
	defer close(f.changed)
	for {
		select {
		case e, ok := <-f.w.Events:
			if !ok {
				return
			}
			if e.Name != f.path || !e.Has(fsnotify.Create) {
				continue
			}
		case _, ok := <-f.w.Errors: // events were lost
			if !ok {
				return
			}
		}
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
}

// JSON reads a file that layout.WriteJSON wrote.
func JSON[T any](path string) (T, error) {
	var v T
	err := layout.ReadJSON(path, &v)
	return v, err
}
