package component

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := []File{
		{Path: filepath.Join(dir, "a/b/secret"), Mode: 0o600, Data: []byte("s"), Durable: true},
		{Path: filepath.Join(dir, "a/open"), Mode: 0o644, Data: []byte("o")},
		{Path: filepath.Join(dir, "empty"), Mode: 0o640},
	}
	assert.NilError(t, Write(files))
	for _, f := range files {
		data, err := os.ReadFile(f.Path)
		assert.NilError(t, err)
		assert.Equal(t, string(data), string(f.Data))
		info, err := os.Stat(f.Path)
		assert.NilError(t, err)
		assert.Equal(t, info.Mode(), f.Mode)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*/.tmp*"))
	assert.NilError(t, err)
	assert.Equal(t, len(left), 0)
}

func TestWriteKeepsUnchangedFiles(t *testing.T) {
	t.Parallel()
	f := File{Path: filepath.Join(t.TempDir(), "f"), Mode: 0o600, Data: []byte("same")}
	assert.NilError(t, Write([]File{f}))
	before, err := os.Stat(f.Path)
	assert.NilError(t, err)
	// An old time that a new file cannot have.
	assert.NilError(t, os.Chtimes(f.Path, time.Unix(1, 0), time.Unix(1, 0)))
	assert.NilError(t, Write([]File{f}))
	after, err := os.Stat(f.Path)
	assert.NilError(t, err)
	assert.Assert(t, os.SameFile(before, after))
	assert.Equal(t, after.ModTime().Unix(), int64(1))

	for name, change := range map[string]func(*File){
		"content":          func(f *File) { f.Data = []byte("diff") },
		"length":           func(f *File) { f.Data = []byte("different") },
		"mode":             func(f *File) { f.Mode = 0o640 },
		"both, once again": func(f *File) { f.Mode, f.Data = 0o600, []byte("same") },
	} {
		changed := f
		change(&changed)
		assert.NilError(t, Write([]File{changed}), name)
		data, err := os.ReadFile(f.Path)
		assert.NilError(t, err)
		assert.Equal(t, string(data), string(changed.Data), name)
		info, err := os.Stat(f.Path)
		assert.NilError(t, err)
		assert.Equal(t, info.Mode(), changed.Mode, name)
	}
}

func TestWriteReplacesLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	host := filepath.Join(dir, "host")
	assert.NilError(t, os.WriteFile(host, []byte("host"), 0o600))
	link := filepath.Join(dir, "link")
	assert.NilError(t, os.Symlink(host, link))
	for _, content := range []string{"host", "new"} {
		assert.NilError(t, Write([]File{{Path: link, Mode: 0o600, Data: []byte(content)}}))
		info, err := os.Lstat(link)
		assert.NilError(t, err)
		assert.Assert(t, info.Mode().IsRegular())
		data, err := os.ReadFile(host)
		assert.NilError(t, err)
		assert.Equal(t, string(data), "host", "the target of the link must not change")
	}
}

func TestWriteTriesAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	assert.NilError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	assert.NilError(t, os.Mkdir(filepath.Join(dir, "directory"), 0o700))
	good := filepath.Join(dir, "good")
	err := Write([]File{
		{Path: filepath.Join(dir, "directory"), Mode: 0o600},
		{Path: filepath.Join(dir, "file/below"), Mode: 0o600},
		{Path: good, Mode: 0o600},
	})
	assert.ErrorContains(t, err, "directory: is a directory")
	assert.ErrorContains(t, err, "file/below")
	_, err = os.Stat(good)
	assert.NilError(t, err)
}

func TestMakeDirs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	assert.NilError(t, os.Mkdir(filepath.Join(dir, "wide"), 0o777))
	want := []Dir{{filepath.Join(dir, "new/deep"), 0o711}, {filepath.Join(dir, "wide"), 0o700}}
	for range 2 {
		assert.NilError(t, MakeDirs(want))
		for _, d := range want {
			info, err := os.Stat(d.Path)
			assert.NilError(t, err)
			assert.Equal(t, info.Mode(), fs.ModeDir|d.Mode)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "new"))
	assert.NilError(t, err)
	assert.Equal(t, info.Mode().Perm(), fs.FileMode(parentMode))

	assert.NilError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	err = MakeDirs([]Dir{{filepath.Join(dir, "file"), 0o700}, {filepath.Join(dir, "file/below"), 0o700}})
	assert.Equal(t, strings.Count(fmt.Sprint(err), "create directory"), 2)
}
