package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// entries returns the names in a directory.
func entries(t *testing.T, dir string) string {
	t.Helper()
	all, err := os.ReadDir(dir)
	assert.NilError(t, err)
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func checkFile(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	b, err := os.ReadFile(path)
	assert.NilError(t, err)
	assert.Equal(t, string(b), text)
	st, err := os.Lstat(path)
	assert.NilError(t, err)
	assert.Equal(t, st.Mode(), mode)
}

func TestWrite(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{"plain": {}, "durable": {Durable: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "f")
			assert.NilError(t, o.Write(path, []byte("one"), 0o666))
			checkFile(t, path, "one", 0o666) // independent of the umask
			before, err := os.Open(path)
			assert.NilError(t, err)
			defer func() { _ = before.Close() }()
			assert.NilError(t, o.Write(path, []byte("two"), 0o600))
			checkFile(t, path, "two", 0o600)
			b := make([]byte, 8)
			n, err := before.Read(b)
			assert.NilError(t, err)
			assert.Equal(t, string(b[:n]), "one", "an open file keeps the old content")
			assert.Equal(t, entries(t, dir), "f")
		})
	}
}

func TestWriteReplacesLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, path := filepath.Join(dir, "target"), filepath.Join(dir, "f")
	assert.NilError(t, os.WriteFile(target, []byte("foreign"), 0o604))
	assert.NilError(t, os.Chmod(target, 0o604))
	assert.NilError(t, os.Symlink(target, path))
	assert.NilError(t, Write(path, []byte("text"), 0o640))
	checkFile(t, path, "text", 0o640)
	checkFile(t, target, "foreign", 0o604)
}

func TestWriteNew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	o := Options{New: true, Durable: true}
	assert.NilError(t, o.Write(path, []byte("first"), 0o600))
	assert.ErrorIs(t, o.Write(path, []byte("second"), 0o600), fs.ErrExist)
	checkFile(t, path, "first", 0o600)
	assert.NilError(t, os.Symlink("nowhere", filepath.Join(dir, "link")))
	assert.ErrorIs(t, o.Write(filepath.Join(dir, "link"), nil, 0o600), fs.ErrExist)
	assert.Equal(t, entries(t, dir), "f link")
}

func TestWriteKeep(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	o := Options{Keep: true}
	assert.NilError(t, o.Write(path, []byte("new"), 0o640))
	checkFile(t, path, "new", 0o640)
	assert.NilError(t, os.Chmod(path, 0o604))
	root := os.Geteuid() == 0
	if root {
		assert.NilError(t, os.Chown(path, 12, 34))
	}
	assert.NilError(t, o.Write(path, []byte("kept"), 0o600))
	checkFile(t, path, "kept", 0o604)
	var st unix.Stat_t
	assert.NilError(t, unix.Lstat(path, &st))
	if root {
		assert.DeepEqual(t, []uint32{st.Uid, st.Gid}, []uint32{12, 34})
	}
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	assert.NilError(t, os.MkdirAll(filepath.Join(path, "not-empty"), 0o700))
	for _, err := range []error{Write(path, []byte("text"), 0o600), Symlink("target", path)} {
		assert.Check(t, is.ErrorContains(err, "f: file exists"))
	}
	assert.Equal(t, entries(t, dir), "f")
	assert.ErrorIs(t, Write(filepath.Join(dir, "absent", "f"), nil, 0o600), fs.ErrNotExist)
}

func TestStage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, link := filepath.Join(dir, "f"), filepath.Join(dir, "link")
	assert.NilError(t, Write(path, []byte("old"), 0o600))
	file, err := Options{Durable: true}.Stage(path, []byte("new"), 0o644)
	assert.NilError(t, err)
	linked, err := StageSymlink("f", link)
	assert.NilError(t, err)
	discarded, err := Options{}.Stage(path, []byte("discarded"), 0o644)
	assert.NilError(t, err)
	checkFile(t, path, "old", 0o600)
	assert.NilError(t, file.Commit())
	assert.NilError(t, linked.Commit())
	for _, s := range []*Staged{file, linked, discarded} {
		s.Discard()
	}
	checkFile(t, path, "new", 0o644)
	target, err := os.Readlink(link)
	assert.NilError(t, err)
	assert.Equal(t, target, "f")
	assert.NilError(t, Symlink("g", link))
	target, err = os.Readlink(link)
	assert.NilError(t, err)
	assert.Equal(t, target, "g")
	assert.Equal(t, entries(t, dir), "f link")
}
