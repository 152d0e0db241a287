package datadir

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// TestNewerState checks that every state file of a newer version is refused, all together.
func TestNewerState(t *testing.T) {
	t.Parallel()
	d := layout.NewData(t.TempDir())
	assert.NilError(t, CheckState(d, os.Getuid()))
	for _, f := range stateFiles(d) {
		write(t, f.path)
		text := `{"format": 99, "forwards": "unknown"}`
		if f.path == d.Ports() {
			text = "#format 99\nunknown\n"
		}
		assert.NilError(t, os.WriteFile(f.path, []byte(text), 0o600))
	}
	write(t, d.Record())
	assert.NilError(t, os.WriteFile(d.Record(), []byte(`{"format": 99}`), 0o600))
	err := CheckState(d, os.Getuid())
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	for _, f := range stateFiles(d) {
		assert.Check(t, cmp.Contains(err.Error(), f.path+": format 99 is newer than this program, which supports formats up to 1"))
	}
	assert.Equal(t, strings.Count(hints(err), "use the version of the program that wrote the data"), 1)
	_, err = ReadRecord(d, os.Getuid())
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, "format 99 is newer")

	r := Registry{t.TempDir()}
	assert.NilError(t, r.Put("one", d.Dir))
	assert.NilError(t, os.WriteFile(r.path("one"), []byte(`{"format": 99}`), 0o600))
	_, err = r.Find("one")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, "format 99 is newer")
}

// TestDamagedState checks that damaged files are refused unless the node creates them again.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	d := layout.NewData(t.TempDir())
	refused := map[string][]string{
		"":           {d.ManualPorts()},
		"{":          {d.ManualPorts()},
		"\x00\xff\n": {d.ManualPorts()},
		"{}":         nil,
	}
	for text, want := range refused {
		for _, f := range stateFiles(d) {
			if f.path == d.JoinRecord() {
				continue // membership.Load reports it
			}
			write(t, f.path)
			assert.NilError(t, os.WriteFile(f.path, []byte(text), 0o600))
			err := CheckState(d, os.Getuid())
			if !slices.Contains(want, f.path) {
				assert.NilError(t, err, "%q in %s", text, f.path)
			} else {
				assert.ErrorIs(t, err, errdefs.ErrConfig)
				assert.Assert(t, cmp.Contains(hints(err), "rm "+f.path+"    # then add the forwards again"))
			}
			assert.NilError(t, os.Remove(f.path))
		}
	}
	assert.NilError(t, os.MkdirAll(d.ManualPorts(), 0o700))
	assert.ErrorIs(t, CheckState(d, os.Getuid()), errdefs.ErrConfig, "a directory")
}

// TestForeignState checks that files of another account are refused unless the node replaces them.
func TestForeignState(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Root)
	d := layout.NewData(t.TempDir())
	for _, f := range stateFiles(d) {
		write(t, f.path)
		assert.NilError(t, os.WriteFile(f.path, []byte("{}"), 0o600))
		assert.NilError(t, os.Chown(f.path, 1234, 1234))
	}
	err := CheckState(d, os.Getuid())
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.Equal(t, strings.Count(err.Error(), "belongs to uid 1234, but this account has uid 0"), 3, err)
	for _, path := range []string{d.Ports(), d.ManualPorts(), d.JoinRecord()} {
		assert.Assert(t, cmp.Contains(hints(err), "chown 0 "+path))
	}
}

// TestWriteState checks that the writers add the version, and that readers accept files of earlier versions, which have none.
func TestWriteState(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.json")
	type state struct {
		Name string `json:"name"`
	}
	assert.NilError(t, layout.WriteState(path, state{"a"}))
	text, err := os.ReadFile(path)
	assert.NilError(t, err)
	assert.Equal(t, string(text), `{"format":1,"name":"a"}`+"\n")
	for _, text := range []string{string(text), `{"name":"a"}`} {
		assert.NilError(t, os.WriteFile(path, []byte(text), 0o600))
		var s state
		assert.NilError(t, layout.ReadState(path, &s))
		assert.Equal(t, s.Name, "a")
	}
	assert.Assert(t, layout.WriteState(path, []string{"a"}) != nil, "only objects have a format")
}

// TestClosedDirectory checks that a registry that the account cannot read is reported with the directory that prevents it, and not as a
// damaged entry.
func TestClosedDirectory(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.OrdinaryUser)
	r := Registry{filepath.Join(t.TempDir(), "share")}
	assert.NilError(t, r.Put("x", "/data"))
	assert.NilError(t, os.Chmod(r.XDGDataHome, 0))
	t.Cleanup(func() { assert.Check(t, os.Chmod(r.XDGDataHome, 0o700)) })
	_, err := r.Find("x")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, "permission denied in "+r.XDGDataHome)
	assert.Assert(t, cmp.Contains(hints(err), "chown "))
}
