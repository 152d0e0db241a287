package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// started returns a node whose data dir looks as after a start. If dir is empty, it is the default data dir.
func started(t *testing.T, dir string) *Node {
	t.Helper()
	testutil.Require(t, testutil.Subids)
	cfg := config.Default()
	cfg.DataDir = dir
	n, err := New(cfg, Options{})
	assert.NilError(t, err)
	assert.NilError(t, claim(t.Context(), n))
	write(t, n.Kubeconfig())
	write(t, filepath.Join(n.Data().Dir, "kubelet", "pods", "x"))
	return n
}

func write(t *testing.T, path string) {
	t.Helper()
	assert.NilError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	assert.NilError(t, os.WriteFile(path, []byte("x\n"), 0o600))
}

func attach(t *testing.T) *Node {
	t.Helper()
	n, err := Attach("default", Options{})
	assert.NilError(t, err)
	return n
}

// TestDataDirOfTheLastStart checks that Attach finds the data dir of the last start by the node's name, and that DeleteData does not
// delete data dirs of earlier starts.
func TestDataDirOfTheLastStart(t *testing.T) {
	_, xdg := home(t)
	byDefault := layout.DefaultDataDir(xdg, "default")
	other := filepath.Join(t.TempDir(), "other")
	link := filepath.Join(t.TempDir(), "link")
	assert.NilError(t, os.Symlink(other, link))
	assert.NilError(t, os.Mkdir(other, 0o755))
	assert.Equal(t, started(t, "").Data().Dir, byDefault)
	assert.Equal(t, started(t, link).Data().Dir, other, "symbolic links must be resolved")

	n := attach(t)
	assert.Equal(t, n.Data().Dir, other)
	assert.Equal(t, n.Config().DataDir, other)
	n, err := New(config.Default(), Options{})
	assert.NilError(t, err)
	assert.Equal(t, n.Data().Dir, other)

	write(t, filepath.Join(other, "precious.txt"))
	res, err := attach(t).DeleteData(t.Context())
	assert.NilError(t, err)
	assert.DeepEqual(t, res, &datadir.Result{Dir: other, Foreign: []string{filepath.Join(other, "precious.txt")}, Next: byDefault})
	_, err = os.Stat(filepath.Join(other, "precious.txt"))
	assert.NilError(t, err)
	_, err = os.Stat(layout.NewData(byDefault).AdminKubeconfig())
	assert.NilError(t, err, "the data of another start must stay")

	assert.Equal(t, attach(t).Data().Dir, byDefault)
	res, err = attach(t).DeleteData(t.Context())
	assert.NilError(t, err)
	assert.DeepEqual(t, res, &datadir.Result{Dir: byDefault})
	left, err := os.ReadDir(filepath.Join(xdg, "rootlessnode"))
	assert.NilError(t, err)
	assert.Equal(t, len(left), 0, "%v", left)
}

// TestDataDirIsMissing checks that the node does not start with new data when its data dir is missing, for example on an unmounted
// disk.
func TestDataDirIsMissing(t *testing.T) {
	_, xdg := home(t)
	other := filepath.Join(t.TempDir(), "other")
	started(t, other)
	assert.NilError(t, os.Rename(other, other+".away"))
	_, err := New(config.Default(), Options{})
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, "was in "+other)
	cfg := config.Default()
	cfg.DataDir = other
	_, err = New(cfg, Options{})
	assert.NilError(t, err, "the config names the data dir")
	res, err := attach(t).DeleteData(t.Context())
	assert.NilError(t, err)
	assert.Assert(t, res == nil)
	n, err := New(config.Default(), Options{})
	assert.NilError(t, err)
	assert.Equal(t, n.Data().Dir, layout.DefaultDataDir(xdg, "default"))
}

// TestDataDirIsMoved checks that a symbolic link at the path of the data dir is followed, and removed from the registry with the data.
func TestDataDirIsMoved(t *testing.T) {
	_, xdg := home(t)
	other := filepath.Join(t.TempDir(), "other")
	started(t, other)
	moved := other + ".moved"
	assert.NilError(t, os.Rename(other, moved))
	assert.NilError(t, os.Symlink(moved, other))
	assert.Equal(t, attach(t).Data().Dir, moved)
	res, err := attach(t).DeleteData(t.Context())
	assert.NilError(t, err)
	assert.DeepEqual(t, res, &datadir.Result{Dir: moved})
	assert.Equal(t, attach(t).Data().Dir, layout.DefaultDataDir(xdg, "default"))

	assert.NilError(t, os.Remove(other))
	started(t, other)
	assert.NilError(t, os.Rename(other, moved))
	assert.NilError(t, os.Symlink("nowhere", other))
	_, err = New(config.Default(), Options{})
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, "does not exist now")
	res, err = attach(t).DeleteData(t.Context())
	assert.NilError(t, err)
	assert.Assert(t, res == nil)
	assert.Equal(t, attach(t).Data().Dir, layout.DefaultDataDir(xdg, "default"))
}

// TestDataDirIsSomethingElseNow checks that foreign files are kept after the user has removed the data and uses the registered
// directory for other files.
func TestDataDirIsSomethingElseNow(t *testing.T) {
	home(t)
	other := filepath.Join(t.TempDir(), "other")
	started(t, other)
	assert.NilError(t, os.RemoveAll(other))
	write(t, filepath.Join(other, "log", "mine"))
	write(t, filepath.Join(other, "mine"))
	_, err := New(config.Default(), Options{})
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	res, err := attach(t).DeleteData(t.Context())
	assert.NilError(t, err)
	assert.DeepEqual(t, res, &datadir.Result{Dir: other, Foreign: []string{filepath.Join(other, "log"), filepath.Join(other, "mine")}})
	_, err = os.Stat(filepath.Join(other, "log", "mine"))
	assert.NilError(t, err)
	_, err = New(config.Default(), Options{})
	assert.NilError(t, err)
}

// TestNewRefusesForeignDirs checks that New reports a foreign data dir together with the other configuration errors.
func TestNewRefusesForeignDirs(t *testing.T) {
	home(t)
	t.Setenv("HOME", t.TempDir())
	write(t, filepath.Join(os.Getenv("HOME"), ".profile"))
	cfg := config.Default()
	cfg.DataDir, cfg.API.Port = os.Getenv("HOME"), 70000
	_, err := New(cfg, Options{})
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, "is the home directory of the account")
	assert.ErrorContains(t, err, "api.port")

	foreign := t.TempDir()
	write(t, filepath.Join(foreign, "kubelet", "x"))
	write(t, filepath.Join(foreign, "precious.txt"))
	cfg = config.Default()
	cfg.DataDir = foreign
	_, err = New(cfg, Options{})
	assert.ErrorIs(t, err, errdefs.ErrConfig)

	// A node that an earlier version started may use such a data dir. Its data cannot be distinguished from the foreign files.
	n := attach(t)
	running := *n.Config()
	running.DataDir = foreign
	n.cfg.Store(&running)
	_, err = n.DeleteData(t.Context())
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, "precious.txt")
	_, err = os.Stat(filepath.Join(foreign, "kubelet", "x"))
	assert.NilError(t, err)
}

// TestNewReadsNoForeignJoinRecord checks that New reports the foreign data dir and not an invalid join record in it.
func TestNewReadsNoForeignJoinRecord(t *testing.T) {
	home(t)
	for _, file := range []string{"kubernetes", "kubernetes/join.json"} {
		cfg := config.Default()
		cfg.DataDir = t.TempDir()
		write(t, filepath.Join(cfg.DataDir, filepath.FromSlash(file)))
		write(t, filepath.Join(cfg.DataDir, "precious.txt"))
		_, err := New(cfg, Options{})
		assert.ErrorIs(t, err, errdefs.ErrConfig)
		assert.ErrorContains(t, err, "precious.txt")
	}
}

// TestInterruptedDeletion checks that the next start completes an interrupted removal and begins with new data.
func TestInterruptedDeletion(t *testing.T) {
	home(t)
	n := started(t, "")
	write(t, filepath.Join(n.Data().Dir, "etcd", "member", "x"))
	var r datadir.Record
	assert.NilError(t, layout.ReadJSON(n.Data().Record(), &r))
	r.Deleting = true
	assert.NilError(t, layout.WriteJSON(n.Data().Record(), r))
	assert.NilError(t, os.RemoveAll(n.Data().PKI()))

	log, messages := logtest.NewNullLogger()
	n, err := New(config.Default(), Options{Log: log})
	assert.NilError(t, err)
	assert.NilError(t, claim(t.Context(), n))
	assert.Assert(t, cmp.Contains(messages.LastEntry().Message, "was interrupted; completing it"))
	left, err := os.ReadDir(n.Data().Dir)
	assert.NilError(t, err)
	assert.Equal(t, len(left), 1, "%v", left)
	now, err := datadir.ReadRecord(n.Data(), os.Getuid())
	assert.NilError(t, err)
	assert.Assert(t, !now.Deleting)
	assert.Equal(t, attach(t).Data().Dir, n.Data().Dir)

	assert.NilError(t, os.MkdirAll(n.Runtime().Dir, 0o700))
	assert.NilError(t, layout.WriteJSON(n.Data().Record(), r))
	res, err := attach(t).DeleteData(t.Context())
	assert.NilError(t, err)
	assert.DeepEqual(t, res, &datadir.Result{Dir: n.Data().Dir})
}

// TestDeleteDataReportsErrors checks that DeleteData returns the error of the helper process with a hint for root.
func TestDeleteDataReportsErrors(t *testing.T) {
	home(t)
	n := started(t, "")
	cfg := *n.Config()
	cfg.Subids.Source = "dynamic"
	n.cfg.Store(&cfg)
	t.Setenv("GETSUBIDS", "no-such-program")
	_, err := n.DeleteData(t.Context())
	assert.ErrorContains(t, err, "no-such-program")
	assert.Assert(t, !strings.Contains(err.Error(), "exit status"))
	assert.Assert(t, cmp.Contains(strings.Join(errdefs.ReportOf(err).Hints, "\n"), "rm -rf --one-file-system -- "+n.Data().Dir))
	assert.NilError(t, os.Unsetenv("GETSUBIDS"))
	cfg.Subids.Source = "auto"
	n.cfg.Store(&cfg)

	assert.NilError(t, os.WriteFile(n.Data().Record(), []byte(`{"format": 99}`), 0o600))
	_, err = n.DeleteData(t.Context())
	assert.ErrorContains(t, err, "format 99 is newer")
	_, err = os.Stat(n.Kubeconfig())
	assert.NilError(t, err, "the data must not be removed")
}
