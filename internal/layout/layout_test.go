package layout_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

func TestLongestSocketIsTheLongest(t *testing.T) {
	t.Parallel()
	rt := layout.NewRuntime("/run/user/1000", "default")
	for _, p := range []string{rt.APISocket(), rt.NodeSocket(), rt.ExecSocket(), rt.HostSocket(), rt.CredentialsSocket(), rt.SourcesSocket()} {
		assert.Assert(t, len(p) <= len(rt.LongestSocket()), p)
	}
}

// TestLockIsOutsideTheRuntimeDir checks the path of the lock, because the runtime dir is removed while the lock is held.
func TestLockIsOutsideTheRuntimeDir(t *testing.T) {
	t.Parallel()
	rt := layout.NewRuntime("/run/user/1000", "default")
	assert.Assert(t, !strings.HasPrefix(rt.Lock(), rt.Dir+"/"))
	assert.Assert(t, strings.HasPrefix(rt.StateDir(), rt.Dir+"/"))
}

func TestBindsAreBelowTheDataDir(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, b := range layout.NewData("/data").Binds() {
		assert.Assert(t, strings.HasPrefix(b.Host, "/data/") && filepath.IsAbs(b.Inside), "%+v", b)
		assert.Assert(t, !seen[b.Host] && !seen[b.Inside], "duplicate: %+v", b)
		seen[b.Host], seen[b.Inside] = true, true
	}
}

// TestEntriesAreComplete checks that each path of Data is in or below an entry, because a removal removes only the entries.
func TestEntriesAreComplete(t *testing.T) {
	t.Parallel()
	const dir = "/data"
	data := layout.NewData(dir)
	entries := data.Entries()
	listed := func(method, path string) {
		rel, err := filepath.Rel(dir, path)
		assert.NilError(t, err)
		top, _, _ := strings.Cut(rel, "/")
		assert.Check(t, slices.Contains(entries, top), "Data.Entries lacks %s (Data.%s)", top, method)
	}
	value := reflect.ValueOf(data)
	for i := range value.NumMethod() {
		name := value.Type().Method(i).Name
		switch f := value.Method(i).Interface().(type) {
		case func() string:
			listed(name, f())
		case func(string) string:
			listed(name, f("x"))
		case func() []layout.Bind:
			for _, b := range f() {
				listed(name, b.Host)
			}
		case func(string) (string, bool):
			path, ok := f(layout.InsidePKI + "/ca.crt")
			assert.Assert(t, ok)
			assert.Equal(t, path, data.ClusterCA())
			_, ok = f(layout.InsideEtcd + "-other")
			assert.Assert(t, !ok)
		case func() []string:
			assert.Equal(t, name, "Entries")
		default:
			t.Errorf("Data.%s has the type %T: add it to this test, and its paths to Data.Entries", name, f)
		}
	}
	assert.Equal(t, entries[len(entries)-1], filepath.Base(data.Record()), "the record must be last")
	slices.Sort(entries)
	assert.Equal(t, len(slices.Compact(slices.Clone(entries))), len(entries), "duplicate: %v", entries)
}

// TestTakeRole checks that a process with a role loses its private variables, that a child keeps them for RootlessKit, and that
// nothing changes in a host program.
func TestTakeRole(t *testing.T) {
	const count = "_ROOTLESSKIT_REEXEC_COUNT_1_1"
	rt := layout.Runtime{Dir: "/run/x"}
	for role, keep := range map[string]bool{
		"": true, layout.RoleChild: true, layout.RoleRemoveChild: true, layout.RoleNode: false, layout.RoleGuard: false,
	} {
		private := []string{layout.EnvStateDir, layout.EnvPipeFD, layout.EnvTakenToken, count}
		for _, key := range append(private, layout.EnvName) {
			t.Setenv(key, "x")
		}
		assert.NilError(t, layout.SetRole(role, rt))
		got, dir := layout.TakeRole()
		assert.Equal(t, got, role)
		assert.Equal(t, dir, rt)
		for _, key := range private {
			_, there := os.LookupEnv(key)
			assert.Equal(t, there, keep, "%s in role %q", key, role)
		}
		assert.Equal(t, os.Getenv(layout.EnvName), "x")
		layout.DropPrivateEnv()
		assert.Equal(t, os.Getenv(layout.EnvRole)+os.Getenv(layout.EnvRuntimeDir), "")
	}
	assert.DeepEqual(t, layout.RoleEnv(layout.RoleGuard, rt), []string{layout.EnvRole + "=guard", layout.EnvRuntimeDir + "=/run/x"})
}

func TestWriteJSON(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "h.json")
	want := layout.HandoverInfo{ParentPID: 7, Network: layout.NetworkInfo{IP: "10.0.2.100"}}
	assert.NilError(t, layout.WriteJSON(path, want))
	assert.NilError(t, layout.WriteJSON(path, want)) // replaces the file
	st, err := os.Stat(path)
	assert.NilError(t, err)
	assert.Equal(t, st.Mode().Perm(), os.FileMode(0o600))
	var got layout.HandoverInfo
	assert.NilError(t, layout.ReadJSON(path, &got))
	assert.DeepEqual(t, got, want)
	left, err := os.ReadDir(filepath.Dir(path))
	assert.NilError(t, err)
	assert.Equal(t, len(left), 1, "a temporary file is left")

	assert.ErrorIs(t, layout.ReadJSON(path+".none", &got), os.ErrNotExist)
	assert.NilError(t, os.WriteFile(path, []byte("{"), 0o600))
	assert.ErrorContains(t, layout.ReadJSON(path, &got), "decode "+path)
	assert.NilError(t, os.Truncate(path, 17<<20))
	assert.ErrorContains(t, layout.ReadJSON(path, &got), "larger than")
	err = layout.WriteJSON(filepath.Join(path, "x"), want)
	assert.Assert(t, err != nil && !errors.Is(err, os.ErrNotExist), "%v", err)
}
