package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gotest.tools/v3/assert"
)

const (
	claimUID = "0b1c6c0e-5b1f-4c55-9d58-3f2a1c1f0c11"
	volume   = "pvc-" + claimUID
)

func newDirectory(t *testing.T) *directory {
	t.Helper()
	d, err := openDirectory(t.TempDir())
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, d.root.Close()) })
	return d
}

func TestVolumeDir(t *testing.T) {
	name, err := volumeDir("shop", "data-db-0", volume)
	assert.NilError(t, err)
	assert.Equal(t, name, "shop_data-db-0_"+volume)

	// The longest names of the API.
	name, err = volumeDir(strings.Repeat("n", 63), strings.Repeat("c", 253), volume)
	assert.NilError(t, err)
	assert.Equal(t, len(name), maxName)
	assert.Assert(t, strings.HasSuffix(name, "_"+volume))

	for _, bad := range [][3]string{
		{"a", "b", "../x"}, {"a", "..", "/"}, {"a", "b/../..", volume}, {"../..", "c", volume}, {"a", "b\x00", volume}, {"a", "b", ""},
		{"a", "b", strings.Repeat("v", 254)},
	} {
		_, err := volumeDir(bad[0], bad[1], bad[2])
		assert.ErrorContains(t, err, "invalid name", "%q", bad)
	}
}

// TestCreate checks that all users can write to a volume, and that an interrupted attempt is continued.
func TestCreate(t *testing.T) {
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	d := newDirectory(t)
	for range 2 {
		path, err := d.create("a_b_" + volume)
		assert.NilError(t, err)
		info, err := os.Stat(path)
		assert.NilError(t, err)
		assert.Equal(t, info.Mode().Perm(), os.FileMode(0o777))
	}
	// A link must not be followed.
	outside := t.TempDir()
	assert.NilError(t, os.Symlink(outside, filepath.Join(d.path, "a_c_"+volume)))
	_, err := d.create("a_c_" + volume)
	assert.ErrorContains(t, err, "is not a directory")
}

func TestRemove(t *testing.T) {
	d := newDirectory(t)
	outside := filepath.Join(t.TempDir(), "keep")
	assert.NilError(t, os.WriteFile(outside, nil, 0o600))
	path, err := d.create("a_b_" + volume)
	assert.NilError(t, err)
	deep := filepath.Join(path, strings.Repeat("x/", 50))
	assert.NilError(t, os.MkdirAll(deep, 0o755))
	assert.NilError(t, os.Symlink(filepath.Dir(outside), filepath.Join(path, "link")))
	assert.NilError(t, os.Symlink(outside, filepath.Join(deep, "file")))

	assert.NilError(t, d.remove(path, volume))
	_, err = os.Lstat(path)
	assert.Assert(t, os.IsNotExist(err))
	_, err = os.Stat(outside)
	assert.NilError(t, err, "a link was followed")
	assert.NilError(t, d.remove(path, volume), "a repeated removal")

	// A volume that is a link itself, and a file.
	assert.NilError(t, os.Symlink(filepath.Dir(outside), path))
	assert.NilError(t, d.remove(path, volume))
	_, err = os.Stat(outside)
	assert.NilError(t, err, "a link was followed")
}

// TestRemoveRefuses uses paths of volumes that a user created.
func TestRemoveRefuses(t *testing.T) {
	d := newDirectory(t)
	other, err := d.create("a_b_" + volume)
	assert.NilError(t, err)
	for _, bad := range [][2]string{
		{"/etc", "etc"}, {d.path, "x"}, {d.path + "/", ""}, {d.path + "/..", ".."}, {d.path + "/../x_y_z", "z"},
		{d.path + "/./x_y_z", "z"}, {d.path + "//x_y_z", "z"}, {other + "/sub_x", "x"}, {"x_y_z", "z"}, {"", ""},
		{other, "z"}, {other, "x" + volume}, {other + "/", volume}, {d.path + "-other/x_y_z", "z"},
	} {
		assert.ErrorContains(t, d.remove(bad[0], bad[1]), "was not created by this node", "%q", bad)
	}
	_, err = os.Stat(other)
	assert.NilError(t, err)
}

func TestFree(t *testing.T) {
	free, err := newDirectory(t).free()
	assert.NilError(t, err)
	assert.Assert(t, free > 0)
}
