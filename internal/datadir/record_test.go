package datadir

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// ownIDs returns an id map of the account that runs the tests.
func ownIDs(subuids ...IDRange) IDs {
	ids := of(subuids...)
	ids.UID, ids.GID = os.Getuid(), os.Getgid()
	return ids
}

func hints(err error) string { return strings.Join(errdefs.ReportOf(err).Hints, "\n") }

func TestClaim(t *testing.T) {
	t.Parallel()
	a, b := IDRange{100000, 65536}, IDRange{200000, 65536}
	d := layout.NewData(filepath.Join(t.TempDir(), "a", "data"))
	assert.NilError(t, Claim(d, "one", ownIDs(a), "dev"))
	st, err := os.Stat(d.Dir)
	assert.NilError(t, err)
	assert.Equal(t, st.Mode().Perm(), os.FileMode(0o700))
	r, err := ReadRecord(d, os.Getuid())
	assert.NilError(t, err)
	assert.Equal(t, r.Name, "one")
	assert.DeepEqual(t, r.IDs, ownIDs(a))
	assert.Assert(t, !r.Created.IsZero())
	entries, err := os.ReadDir(d.Dir)
	assert.NilError(t, err)
	assert.Equal(t, len(entries), 1, "the temporary file must be removed")

	assert.NilError(t, Claim(d, "one", ownIDs(a), "dev"))
	again, err := ReadRecord(d, os.Getuid())
	assert.NilError(t, err)
	assert.DeepEqual(t, again, r)

	err = Claim(d, "two", ownIDs(a), "dev")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, `belongs to node "one", not to node "two"`)

	err = Claim(d, "one", ownIDs(b), "dev")
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.ErrorContains(t, err, "were 100000-165535 and are now 200000-265535")
	for _, text := range []string{
		"usermod --del-subuids 200000-265535 dev\nusermod --add-subuids 100000-165535 dev", "# row of /etc/subuid: dev:100000:65536\n",
		`delete the data of node "one"`,
	} {
		assert.Assert(t, cmp.Contains(hints(err), text))
	}
}

// TestClaimKeepsUnknownFields checks that Claim keeps fields of newer versions when it adds ids.
func TestClaimKeepsUnknownFields(t *testing.T) {
	t.Parallel()
	a, b := IDRange{100000, 65536}, IDRange{200000, 65536}
	d := layout.NewData(t.TempDir())
	assert.NilError(t, Claim(d, "one", ownIDs(a), "dev"))
	fields := map[string]any{}
	assert.NilError(t, layout.ReadJSON(d.Record(), &fields))
	fields["later"] = "x"
	assert.NilError(t, layout.WriteJSON(d.Record(), fields))
	assert.NilError(t, Claim(d, "one", ownIDs(a, b), "dev"))
	r, err := ReadRecord(d, os.Getuid())
	assert.NilError(t, err)
	assert.DeepEqual(t, r.IDs, ownIDs(a, b))
	fields = nil
	assert.NilError(t, layout.ReadJSON(d.Record(), &fields))
	assert.Equal(t, fields["later"], "x")
	assert.ErrorContains(t, Claim(d, "one", ownIDs(a), "dev"), "200000-265535", "a recorded range must not be removed")
}

// TestClaimTightens checks that Claim removes the access of other accounts. A directory created by install -d has mode 0755.
func TestClaimTightens(t *testing.T) {
	t.Parallel()
	d := layout.NewData(t.TempDir())
	assert.NilError(t, os.Chmod(d.Dir, 0o755))
	assert.NilError(t, Claim(d, "one", ownIDs(IDRange{100000, 65536}), "dev"))
	st, err := os.Stat(d.Dir)
	assert.NilError(t, err)
	assert.Equal(t, st.Mode().Perm(), os.FileMode(0o700))
}

func TestClaimCannotWrite(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.OrdinaryUser)
	d := layout.NewData(t.TempDir())
	assert.NilError(t, os.Chmod(d.Dir, 0o500))
	for _, d := range []layout.Data{d, layout.NewData(filepath.Join(d.Dir, "below"))} {
		err := Claim(d, "one", ownIDs(IDRange{100000, 65536}), "dev")
		assert.ErrorIs(t, err, errdefs.ErrPreflight)
		assert.ErrorContains(t, err, "write to data dir "+d.Dir+": ")
		assert.Assert(t, cmp.Contains(hints(err), "df -h "+d.Dir))
	}
}

func TestRecordFaults(t *testing.T) {
	t.Parallel()
	good := Record{Format: Format, Name: "one", IDs: ownIDs(IDRange{100000, 65536})}
	text := func(change func(*Record)) string {
		r := good
		change(&r)
		b, err := json.Marshal(r)
		assert.NilError(t, err)
		return string(b)
	}
	for name, tc := range map[string]struct{ text, want, hint string }{
		"empty":         {"", "unexpected end of JSON input", "rm "},
		"not JSON":      {"{", "unexpected end of JSON input", "rm "},
		"another type":  {"[]", "cannot unmarshal", "rm "},
		"null":          {"null", "the format or the name is missing", "rm "},
		"no name":       {text(func(r *Record) { r.Name = "" }), "the format or the name is missing", "rm "},
		"no ids":        {text(func(r *Record) { r.IDs.Subgids = nil }), "the subordinate ids are missing", "rm "},
		"a wrong range": {text(func(r *Record) { r.IDs.Subuids = []IDRange{{1 << 31, 1 << 32}} }), "invalid range", "rm "},
		"newer":         {`{"format": 2, "name": {"first": "one"}}`, "format 2 is newer than this program", "newer one"},
		"another uid":   {text(func(r *Record) { r.IDs.UID += 7 }), "the data belongs to uid", "use the account with uid"},
		"large":         {strings.Repeat(" ", maxRecord+1), "larger than", "rm "},
	} {
		d := layout.NewData(t.TempDir())
		assert.NilError(t, os.WriteFile(d.Record(), []byte(tc.text), 0o600))
		_, err := ReadRecord(d, os.Getuid())
		assert.ErrorIs(t, err, errdefs.ErrConfig, name)
		assert.ErrorContains(t, err, tc.want, name)
		if name != "large" {
			assert.Assert(t, cmp.Contains(hints(err), tc.hint), name)
		}
		assert.ErrorContains(t, Claim(d, "one", good.IDs, "dev"), tc.want, name)
	}
	d := layout.NewData(t.TempDir())
	_, err := ReadRecord(d, os.Getuid())
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.NilError(t, os.Symlink("/etc/passwd", d.Record()))
	_, err = ReadRecord(d, os.Getuid())
	assert.ErrorIs(t, err, errdefs.ErrConfig, "symbolic links must not be followed")
	assert.NilError(t, os.Remove(d.Record()))
	assert.NilError(t, os.Mkdir(d.Record(), 0o700))
	_, err = ReadRecord(d, os.Getuid())
	assert.ErrorContains(t, err, "is not a regular file")
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	xdg := t.TempDir()
	r := Registry{XDGDataHome: xdg}
	first, second := t.TempDir(), t.TempDir()
	find := func(want ...string) {
		t.Helper()
		got, err := r.Find("one")
		assert.NilError(t, err)
		assert.DeepEqual(t, got, want)
	}
	find()
	assert.NilError(t, r.Put("one", first))
	assert.NilError(t, r.Put("one", first))
	find(first)
	assert.NilError(t, r.Put("one", second))
	find(second, first)
	assert.NilError(t, r.Put("two", "/elsewhere"))
	assert.NilError(t, r.Drop("one", second))
	find(first)
	assert.NilError(t, r.Drop("one", second))
	assert.NilError(t, os.Remove(first))
	assert.NilError(t, r.Put("one", second))
	find(second)
	assert.NilError(t, r.Drop("one", second))
	find()
	assert.NilError(t, r.Drop("two", "/elsewhere"))
	_, err := os.Stat(layout.RegistryDir(xdg))
	assert.ErrorIs(t, err, fs.ErrNotExist)

	for _, name := range []string{"", ".", "..", "../one", "a/b"} {
		assert.NilError(t, r.Put(name, first))
		_, err := r.Find(name)
		assert.NilError(t, err)
	}
	_, err = os.Stat(layout.RegistryDir(xdg))
	assert.ErrorIs(t, err, fs.ErrNotExist, "a name that is not valid as a file name has no entry")

	for _, text := range []string{"", "{", `{"name": "other", "dataDirs": ["/x"]}`, `{"name": "one", "dataDirs": ["x"]}`} {
		assert.NilError(t, os.MkdirAll(layout.RegistryDir(xdg), 0o700))
		assert.NilError(t, os.WriteFile(layout.RegistryEntry(xdg, "one"), []byte(text), 0o600))
		_, err = r.Find("one")
		assert.ErrorIs(t, err, errdefs.ErrConfig, text)
		assert.Assert(t, cmp.Contains(hints(err), "rm "+layout.RegistryEntry(xdg, "one")))
		assert.Equal(t, len(r.all()), 0)
	}
}
