package datadir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func kubernetes(version string) Versions {
	return Versions{Rootlessnode: "v1", Kubernetes: version, Etcd: "v3.7.3"}
}

// cluster is a data dir with the state of a cluster, whose database is a text.
type cluster struct {
	t *testing.T
	d layout.Data
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	c := cluster{t, layout.NewData(t.TempDir())}
	assert.NilError(t, Claim(c.d, "one", ownIDs(IDRange{100000, 65536}), "dev"))
	return c
}

func (c cluster) database() string { return filepath.Join(etcdDir(c.d), memberDir, "snap", "db") }

// run uses the data with a version, which changes the database.
func (c cluster) run(version, text string) *Snapshot {
	c.t.Helper()
	taken, err := Use(c.d, kubernetes(version))
	assert.NilError(c.t, err)
	assert.NilError(c.t, os.MkdirAll(filepath.Dir(c.database()), 0o700))
	assert.NilError(c.t, os.WriteFile(c.database(), []byte(text), 0o600))
	return taken
}

func (c cluster) read() string {
	c.t.Helper()
	text, err := os.ReadFile(c.database())
	assert.NilError(c.t, err)
	return string(text)
}

func (c cluster) record() Record {
	c.t.Helper()
	r, err := ReadRecord(c.d, os.Getuid())
	assert.NilError(c.t, err)
	return *r
}

// versions returns the versions of the snapshots, the newest first.
func (c cluster) versions() []string {
	c.t.Helper()
	all, err := Snapshots(c.d)
	assert.NilError(c.t, err)
	var out []string
	for _, s := range all {
		out = append(out, s.Versions.Kubernetes)
	}
	return out
}

// TestUpgradeTakesSnapshot checks that only an upgrade to another minor version takes a snapshot, and that the newest ones are kept.
func TestUpgradeTakesSnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	assert.Assert(t, c.run("v1.34.1", "a") == nil, "there was no cluster")
	assert.Assert(t, c.run("v1.34.2", "b") == nil, "a patch release")
	for i, v := range []string{"v1.35.0", "v1.36.0", "v1.37.0"} {
		taken := c.run(v, fmt.Sprint("c", i))
		assert.Assert(t, taken != nil, v)
		assert.Equal(t, c.record().Versions, kubernetes(v))
	}
	assert.DeepEqual(t, c.versions(), []string{"v1.36.0", "v1.35.0"})
	taken, err := Use(c.d, Versions{Kubernetes: "v1.37.0", Etcd: "v3.8.0"})
	assert.NilError(t, err)
	assert.Equal(t, taken.Versions.Etcd, "v3.7.3")
	assert.DeepEqual(t, c.versions(), []string{"v1.37.0", "v1.36.0"})
}

// TestRestoreSnapshot checks that a restore returns to the former state, keeps the present one, and can be undone.
func TestRestoreSnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.run("v1.36.3", "old")
	assert.NilError(t, UpdateIdentity(c.d, func(i *Identity) { i.EncryptionKey = "key1" }))
	taken := c.run("v1.37.2", "new")
	assert.NilError(t, UpdateIdentity(c.d, func(i *Identity) { i.EncryptionKey = "key2" }))

	_, err := RestoreSnapshot(c.d, "v1.35")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.Assert(t, cmp.Contains(hints(err), taken.Name))
	_, err = RestoreSnapshot(c.d, taken.Name)
	assert.NilError(t, err)
	assert.Equal(t, c.read(), "old")
	assert.Equal(t, c.record().Versions, kubernetes("v1.36.3"))
	assert.Equal(t, c.record().EncryptionKey, "key1")
	assert.DeepEqual(t, c.versions(), []string{"v1.37.2", "v1.36.3"})

	all, err := Snapshots(c.d)
	assert.NilError(t, err)
	_, err = RestoreSnapshot(c.d, all[0].Name)
	assert.NilError(t, err)
	assert.Equal(t, c.read(), "new")
	assert.Equal(t, c.record().EncryptionKey, "key2")
	assert.NilError(t, DeleteSnapshot(c.d, all[0].Name))
	assert.ErrorIs(t, DeleteSnapshot(c.d, all[0].Name), errdefs.ErrConfig)
}

// TestInterruptedSnapshot checks that the remains of an interrupted snapshot are neither a snapshot nor in the way.
func TestInterruptedSnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.run("v1.36.3", "old")
	left := filepath.Join(c.d.Snapshots(), partial+"v1.36.3-x", memberDir)
	assert.NilError(t, os.MkdirAll(left, 0o700))
	assert.NilError(t, os.WriteFile(filepath.Join(left, "db"), []byte("ol"), 0o600))
	assert.Equal(t, len(c.versions()), 0)
	c.run("v1.37.2", "new")
	assert.DeepEqual(t, c.versions(), []string{"v1.36.3"})
	assert.Assert(t, !strings.Contains(entries(t, c.d.Snapshots()), partial))
}

// TestInterruptedRestore checks that the next start completes a restore, at whatever step it was interrupted.
func TestInterruptedRestore(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(c cluster, stage, member string) error{
		"before the copy":       func(cluster, string, string) error { return nil },
		"in the copy":           func(_ cluster, stage, _ string) error { return os.Mkdir(stage, 0o700) },
		"in the removal":        func(c cluster, _, _ string) error { return os.Remove(c.database()) },
		"after the removal":     func(_ cluster, stage, member string) error { return os.Rename(member, stage) },
		"without etcd's folder": func(_ cluster, _, member string) error { return os.RemoveAll(filepath.Dir(member)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.run("v1.36.3", "old")
			taken := c.run("v1.37.2", "new")
			was := c.record()
			now := was
			now.Restoring, now.Versions = taken.Name, taken.Versions
			assert.NilError(t, writeRecord(c.d, now, &was))
			etcd := etcdDir(c.d)
			assert.NilError(t, interrupt(c, filepath.Join(etcd, partial+memberDir), filepath.Join(etcd, memberDir)))

			assert.ErrorIs(t, DeleteSnapshot(c.d, taken.Name), errdefs.ErrConfig)
			_, err := Use(c.d, kubernetes("v1.36.3"))
			assert.NilError(t, err)
			assert.Equal(t, c.read(), "old")
			assert.Equal(t, c.record().Restoring, "")
			assert.Equal(t, entries(t, etcd), memberDir)
		})
	}
}

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

// TestSnapshotWithoutSpace checks that an upgrade without a snapshot is refused, and leaves the data as it is.
func TestSnapshotWithoutSpace(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.run("v1.36.3", "old")
	assert.NilError(t, os.Truncate(c.database(), 1<<43)) // a sparse file, larger than any disk
	_, err := Use(c.d, kubernetes("v1.37.2"))
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.ErrorContains(t, err, "are free")
	assert.Equal(t, c.record().Versions, kubernetes("v1.36.3"))
}
