package filewatch

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
)

func TestTrees(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	present, missing := filepath.Join(dir, "present"), filepath.Join(dir, "later", "addons")
	assert.NilError(t, os.MkdirAll(filepath.Join(present, "below"), 0o700))
	w, err := NewTrees([]string{present, missing})
	assert.NilError(t, err)
	defer w.Close()
	for _, change := range []struct {
		what string
		do   func() error
	}{
		{"new file", func() error { return os.WriteFile(filepath.Join(present, "a"), nil, 0o600) }},
		{"below", func() error { return os.WriteFile(filepath.Join(present, "below", "b"), nil, 0o600) }},
		{"renamed", func() error { return os.Rename(filepath.Join(present, "a"), filepath.Join(present, "c")) }},
		{"removed", func() error { return os.Remove(filepath.Join(present, "c")) }},
		{"missing parent", func() error { return os.Mkdir(filepath.Join(dir, "later"), 0o700) }},
		{"missing directory", func() error { return os.Mkdir(missing, 0o700) }},
		{"file in it", func() error { return os.WriteFile(filepath.Join(missing, "d"), nil, 0o600) }},
	} {
		assert.NilError(t, change.do(), change.what)
		select {
		case <-w.Changed():
		case <-t.Context().Done():
			t.Fatal(change.what)
		}
		w.Refresh()
		drain(w)
	}
	// Files next to the directories do not matter.
	assert.NilError(t, os.WriteFile(filepath.Join(dir, "other"), nil, 0o600))
	assert.NilError(t, os.WriteFile(filepath.Join(present, "last"), nil, 0o600))
	<-w.Changed()
}

// drain discards events of changes that have been made.
func drain(w *Trees) {
	for {
		select {
		case <-w.Changed():
		default:
			return
		}
	}
}
