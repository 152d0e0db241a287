package filewatch

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWatch(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "list.json")
	w, err := New(path, JSON[[]string])
	assert.NilError(t, err)
	defer w.Close()
	_, err = w.Read()
	assert.ErrorIs(t, err, fs.ErrNotExist)
	for _, want := range [][]string{{"a"}, {"a", "b"}, {}} {
		assert.NilError(t, layout.WriteJSON(path, want))
		for { // a value may be left from the change before
			<-w.Changed()
			got, err := w.Read()
			assert.NilError(t, err)
			if len(got) == len(want) {
				assert.DeepEqual(t, got, want)
				break
			}
		}
	}
}

// TestOtherFiles checks that other files of the directory cause no change.
func TestOtherFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := New(filepath.Join(dir, "watched"), os.ReadFile)
	assert.NilError(t, err)
	assert.NilError(t, layout.WriteJSON(filepath.Join(dir, "other"), 1))
	own, err := New(filepath.Join(dir, "last"), os.ReadFile) // gets its event after those of other
	assert.NilError(t, err)
	assert.NilError(t, layout.WriteJSON(filepath.Join(dir, "last"), 1))
	<-own.Changed()
	own.Close()
	w.Close()
	_, changed := <-w.Changed()
	assert.Assert(t, !changed)
}

func TestNoDirectory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "none", "file")
	_, err := New(path, os.ReadFile)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "watch "+path)
}
