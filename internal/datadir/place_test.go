package datadir

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// account is a set of directories like those of an account.
type account struct {
	t    *testing.T
	root string
	Place
}

func newAccount(t *testing.T) *account {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	assert.NilError(t, err)
	a := &account{t: t, root: root}
	a.Place = Place{
		Name: "one", UID: os.Getuid(), Homes: []string{a.path("home/dev")}, RuntimeDir: a.path("run/user"), ComponentsDir: a.path("opt/libexec"),
		Exe: a.path("opt/bin/rootlessnode"), Registry: Registry{a.path("home/dev/share")},
		Default: layout.DefaultDataDir(a.path("home/dev/share"), "one"),
	}
	a.files("home/dev/.profile", "run/user/bus", "opt/libexec/kubelet", "opt/bin/rootlessnode")
	return a
}

func (a *account) path(p string) string { return filepath.Join(a.root, p) }

func (a *account) files(paths ...string) {
	a.t.Helper()
	for _, p := range paths {
		assert.NilError(a.t, os.MkdirAll(filepath.Dir(a.path(p)), 0o700))
		assert.NilError(a.t, os.WriteFile(a.path(p), nil, 0o600))
	}
}

// node creates and registers the data dir of a node.
func (a *account) node(name, dir string) {
	a.t.Helper()
	assert.NilError(a.t, Claim(layout.NewData(a.path(dir)), name, ownIDs(IDRange{100000, 65536}), "dev"))
	assert.NilError(a.t, a.Registry.Put(name, a.path(dir)))
}

func TestPlace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dir  string
		set  func(a *account)
		want []string // empty if the node may use the directory
	}{
		"new":            {"data", nil, nil},
		"empty":          {"data", func(a *account) { assert.NilError(t, os.Mkdir(a.path("data"), 0o700)) }, nil},
		"below home":     {"home/dev/data", nil, nil},
		"an empty disk":  {"data", func(a *account) { a.files("data/lost+found/x") }, nil},
		"its own":        {"data", func(a *account) { a.node("one", "data"); a.files("data/precious.txt") }, nil},
		"its default":    {"home/dev/share/rootlessnode/nodes/one", func(a *account) { a.files("home/dev/share/rootlessnode/nodes/one/precious.txt") }, nil},
		"earlier data":   {"data", func(a *account) { a.files("data/kubelet/x", "data/log/x", "data/.ports.json.123", "data/kubeconfig") }, nil},
		"only its cache": {"data", func(a *account) { a.files("data/verified.json", "data/.verified-12") }, nil},

		"another's, gone": {"data", func(a *account) {
			assert.NilError(t, a.Registry.Put("two", a.path("data")))
			a.files("data/x")
			_ = os.Remove(a.path("data/x"))
		}, nil},
		"home":                {"home/dev", nil, []string{"/home/dev: is the home directory of the account"}},
		"home as runtime dir": {"home/dev/data", func(a *account) { a.RuntimeDir = a.path("home/dev") }, nil},
		"runtime dir in home": {"home/dev/rootlessnode/data", func(a *account) { a.RuntimeDir = a.path("home/dev") },
			[]string{"is inside the runtime directory, ", "/home/dev/rootlessnode"}},
		"an empty home": {"home/empty", func(a *account) {
			a.files("home/empty/x")
			_ = os.Remove(a.path("home/empty/x"))
			a.Homes[0] = a.path("home/empty")
		}, []string{"is the home directory"}},
		"above it all":          {"", nil, []string{"contains the home directory of the account", "contains the runtime directory", "contains the components directory", "contains the executable"}},
		"above home":            {"home", nil, []string{"contains the home directory of the account, "}},
		"runtime dir":           {"run/user", nil, []string{"is the runtime directory"}},
		"in runtime dir":        {"run/user/data", nil, []string{"is inside the runtime directory"}},
		"above runtime":         {"run", nil, []string{"contains the runtime directory"}},
		"components":            {"opt/libexec", nil, []string{"is the components directory"}},
		"in components":         {"opt/libexec/data", nil, []string{"is inside the components directory"}},
		"above programs":        {"opt/bin", nil, []string{"contains the executable"}},
		"not empty":             {"data", func(a *account) { a.files("data/a", "data/b", "data/c", "data/d") }, []string{"is not the data dir of a node: it has a, b, c and 1 more"}},
		"earlier data and more": {"data", func(a *account) { a.files("data/a", "data/kubelet/x") }, []string{"without a record, and other files: a"}},
		"common names":          {"data", func(a *account) { a.files("data/log/x", "data/etcd/x", "data/kubeconfig") }, []string{"is not the data dir of a node: it has etcd, kubeconfig, log"}},
		"another's":             {"data", func(a *account) { a.node("two", "data") }, []string{`belongs to node "two", not to node "one"`}},
		"in another's":          {"data/kubelet/one", func(a *account) { a.node("two", "data") }, []string{`is inside the data dir of node "two"`}},
		"above another's": {"data", func(a *account) { a.node("two", "data/two") },
			[]string{`contains the data dir of node "two"`}},
		"another's, not marked": {"data", func(a *account) {
			assert.NilError(t, a.Registry.Put("two", a.path("data")))
			a.files("data/kubelet/x")
		}, []string{`is the data dir of node "two"`}},
		"another's default": {"home/dev/share/rootlessnode/nodes/two", nil, []string{"which holds the default data dirs of nodes"}},
		"a broken record":   {"data", func(a *account) { a.files("data/rootlessnode.json") }, []string{"unexpected end of JSON input"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAccount(t)
			if tc.set != nil {
				tc.set(a)
			}
			a.Dir = a.path(tc.dir)
			err := a.Check()
			if len(tc.want) == 0 {
				assert.NilError(t, err)
				return
			}
			assert.ErrorIs(t, err, errdefs.ErrConfig)
			for _, text := range tc.want {
				assert.Assert(t, cmp.Contains(err.Error(), text))
			}
		})
	}
	for _, dir := range []string{"/", "/home", "/usr", "/proc/self", "/tmp"} {
		a := newAccount(t)
		a.Dir = dir
		assert.ErrorIs(t, a.Check(), errdefs.ErrConfig, dir)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	a.files("disk/x")
	assert.NilError(t, os.Symlink("disk", a.path("link")))
	assert.NilError(t, os.Symlink("nowhere", a.path("dangling")))
	for path, want := range map[string]string{"disk": "disk", "link": "disk", "link/new/data": "disk/new/data", "new": "new"} {
		got, err := Resolve(a.path(path))
		assert.NilError(t, err)
		assert.Equal(t, got, a.path(want))
	}
	for _, path := range []string{"dangling", "dangling/data"} {
		_, err := Resolve(a.path(path))
		assert.ErrorIs(t, err, errdefs.ErrConfig)
		assert.ErrorContains(t, err, "the symbolic link "+a.path("dangling")+" points to a path that does not exist")
	}
	_, err := Resolve(a.path("disk/x/data"))
	assert.ErrorIs(t, err, errdefs.ErrConfig)
}

func TestUnmarked(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	a.files("data/kubelet/x", "data/precious.txt")
	d := layout.NewData(a.path("data"))
	assert.NilError(t, Unmarked(d, "one", true))
	err := Unmarked(d, "one", false)
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, "precious.txt")
	assert.Assert(t, cmp.Contains(hints(err), "rm -rf --one-file-system -- "+a.path("data/kubelet")))
	assert.NilError(t, os.Remove(a.path("data/precious.txt")))
	assert.NilError(t, Unmarked(d, "one", false), "data of an earlier version")
}
