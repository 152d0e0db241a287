package hostinfo

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

func TestRootOnly(t *testing.T) {
	t.Parallel()
	dir := testutil.RootOnlyDir(t)
	const account = 64123
	file := func(mode os.FileMode, uid int, parts ...string) string {
		path := filepath.Join(append([]string{dir}, parts...)...)
		assert.NilError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		assert.NilError(t, os.WriteFile(path, []byte("text"), 0o600))
		assert.NilError(t, errors.Join(os.Chmod(path, mode), os.Chown(path, uid, 0)))
		return path
	}
	link := func(target string, uid int, parts ...string) string {
		path := filepath.Join(append([]string{dir}, parts...)...)
		assert.NilError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		assert.NilError(t, errors.Join(os.Symlink(target, path), os.Lchown(path, uid, 0)))
		return path
	}
	good := file(0o755, 0, "bin", "good")
	file(0o755, 0, "account", "bin", "f")
	assert.NilError(t, os.Chown(filepath.Join(dir, "account"), account, 0))
	file(0o755, 0, "sticky", "bin", "f")
	assert.NilError(t, os.Chmod(filepath.Join(dir, "sticky"), 0o777|os.ModeSticky))
	for name, tc := range map[string]struct{ path, fault string }{
		"good":                          {good, ""},
		"not clean":                     {dir + "/bin/../bin//./good", ""},
		"link":                          {link("bin/good", 0, "link"), ""},
		"absolute link":                 {link(good, 0, "absolute"), ""},
		"link to a directory above":     {link("../bin/good", 0, "sub", "up"), ""},
		"link of a directory":           {filepath.Join(link("bin", 0, "dirlink"), "good"), ""},
		"missing":                       {dir + "/bin/missing", "no such file or directory"},
		"loop":                          {link("loop", 0, "loop"), "too many levels of symbolic links"},
		"file of the account":           {file(0o755, account, "bin", "owned"), "/bin/owned belongs to uid 64123"},
		"writable for the group":        {file(0o775, 0, "bin", "group"), "is group- or world-writable (mode 0775)"},
		"writable for others":           {file(0o757, 0, "bin", "world"), "is group- or world-writable (mode 0757)"},
		"directory of the account":      {dir + "/account/bin/f", "/account/bin/f can be replaced: " + dir + "/account belongs to uid 64123"},
		"sticky directory":              {dir + "/sticky/bin/f", dir + "/sticky is group- or world-writable (mode 1777)"},
		"link through the account":      {link("account/bin/f", 0, "through"), dir + "/account belongs to uid 64123"},
		"link out of the account":       {link("../bin/good", 0, "account", "out"), dir + "/account belongs to uid 64123"},
		"link of the account":           {link("bin/good", account, "foreign"), "foreign belongs to uid 64123"},
		"there and back by the account": {dir + "/" + "dots/good", dir + "/account belongs to uid 64123"},
	} {
		if name == "there and back by the account" {
			link("account/../bin", 0, "dots")
		}
		err := RootOnly(tc.path)
		f, openErr := OpenRootOnly(tc.path)
		if strings.HasPrefix(name, "sticky") {
			assert.NilError(t, RootOnlyForNow(tc.path), name)
		} else {
			assert.Equal(t, RootOnlyForNow(tc.path) == nil, tc.fault == "", name)
		}
		if tc.fault == "" {
			assert.NilError(t, err, name)
			assert.NilError(t, openErr, name)
			b, err := io.ReadAll(f)
			assert.NilError(t, errors.Join(err, f.Close()))
			assert.Equal(t, string(b), "text")
			continue
		}
		assert.ErrorContains(t, err, tc.fault, name)
		assert.ErrorContains(t, openErr, tc.fault, name)
	}
}

// TestRootOnlyAndACL checks that an access control list that allows an account to write is detected by the mode.
func TestRootOnlyAndACL(t *testing.T) {
	t.Parallel()
	path := filepath.Join(testutil.RootOnlyDir(t), "f")
	assert.NilError(t, os.WriteFile(path, nil, 0o644))
	acl := []byte("\x02\x00\x00\x00" + // version
		"\x01\x00\x06\x00\xff\xff\xff\xff" + // user::rw-
		"\x02\x00\x06\x00\x7b\xfa\x00\x00" + // user:64123:rw-
		"\x04\x00\x04\x00\xff\xff\xff\xff" + // group::r--
		"\x10\x00\x06\x00\xff\xff\xff\xff" + // mask::rw-
		"\x20\x00\x04\x00\xff\xff\xff\xff") // other::r--
	err := unix.Setxattr(path, "system.posix_acl_access", acl, 0)
	testutil.Require(t, testutil.Requirement{Name: "acl", Check: func() error { return err }})
	assert.ErrorContains(t, RootOnly(path), "is group- or world-writable")
}

func TestRootOnlyIsAFile(t *testing.T) {
	t.Parallel()
	assert.ErrorContains(t, RootOnly("/"), "is a directory")
	_, err := OpenRootOnly("/" + strings.Repeat("x/", 10)) // not below a directory that others can write
	assert.ErrorIs(t, err, os.ErrNotExist)
}
