package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// upgraded creates a data dir for the fake node that was used with two versions, and returns the name of the snapshot.
func (c *cli) upgraded(t *testing.T) string {
	t.Helper()
	d := c.node.Data()
	ids := []datadir.IDRange{{Start: 100000, Count: 65536}}
	assert.NilError(t, datadir.Claim(d, "default", datadir.IDs{UID: os.Getuid(), Subuids: ids, Subgids: ids}, "dev"))
	etcd, _ := d.OnHost(layout.InsideEtcd)
	assert.NilError(t, os.MkdirAll(filepath.Join(etcd, "member"), 0o700))
	assert.NilError(t, os.WriteFile(filepath.Join(etcd, "member", "db"), []byte("old"), 0o600))
	_, err := datadir.Use(d, datadir.Versions{Kubernetes: "v1.36.3", Etcd: "v3.7.3"})
	assert.NilError(t, err)
	taken, err := datadir.Use(d, datadir.Versions{Kubernetes: "v1.37.2", Etcd: "v3.7.3"})
	assert.NilError(t, err)
	return taken.Name
}

func TestSnapshots(t *testing.T) {
	c := newCLI(t)
	assert.Equal(t, c.run("snapshot", "list", "-o", "json"), 0)
	assert.Equal(t, c.out.String(), "[]\n")
	name := c.upgraded(t)
	assert.Equal(t, c.run("snapshot", "list"), 0)
	assert.Assert(t, cmp.Contains(c.out.String(), name+"   "))
	assert.Equal(t, c.run("snapshot", "restore", "v1"), 2)
	assert.Assert(t, cmp.Contains(c.err.String(), "# existing snapshots: "+name))
	assert.Equal(t, c.run("snapshot", "restore", name), 0)
	assert.Assert(t, cmp.Contains(c.out.String(), "start the node with: rootlessnode up --set kubernetesVersion=v1.36\n"))
	assert.Equal(t, c.run("snapshot", "delete", name), 0)
	assert.Equal(t, c.run("snapshot", "delete", name), 2)
}

// TestUpReportsUpgrade checks that `up` shows how to return to the former version, but only after an upgrade.
func TestUpReportsUpgrade(t *testing.T) {
	c := newCLI(t)
	c.node.statuses = []status.Status{{Name: "default", State: status.NodeReady}}
	const report = "The data was upgraded from Kubernetes v1.36.3. To return to it, stop the node, then:\n"
	name := c.upgraded(t)
	c.now = func() time.Time { return time.Now().Add(time.Hour) }
	assert.Equal(t, c.run("up"), 0)
	assert.Assert(t, !strings.Contains(c.out.String(), report), "an earlier start has upgraded the data")
	c.now = func() time.Time { return t0 }
	assert.Equal(t, c.run("up"), 0)
	assert.Assert(t, cmp.Contains(c.out.String(), report+"  rootlessnode snapshot restore "+name+"\n  rootlessnode up --set kubernetesVersion=v1.36\n"))
}
