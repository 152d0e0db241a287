package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/membership"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// workerData returns the data dir of a worker that has joined a cluster.
func workerData(t *testing.T) layout.Data {
	t.Helper()
	data := layout.NewData(t.TempDir())
	assert.NilError(t, os.MkdirAll(filepath.Dir(data.JoinRecord()), 0o700))
	r := membership.Record{Server: "https://192.0.2.1:6443", NodeName: "theirs", Cluster: &membership.Cluster{
		PodCIDR: "10.142.0.0/16", ServiceCIDR: "10.143.0.0/16", DNSAddress: "10.143.0.10", Domain: "example.test", Backend: "vxlan", VXLANPort: 4789,
	}}
	assert.NilError(t, r.Save(data))
	return data
}

func TestRejoin(t *testing.T) {
	t.Parallel()
	facts := config.HostFacts{Hostname: "host", XDGDataHome: "/none"}
	for name, tc := range map[string]struct {
		set                    func(*config.NodeConfig)
		server, nodeName, pods string
	}{
		"no setting":     {func(*config.NodeConfig) {}, "https://192.0.2.1:6443", "theirs", "10.142.0.0/16"},
		"another name":   {func(c *config.NodeConfig) { c.NodeName = "mine" }, "https://192.0.2.1:6443", "mine", "10.142.0.0/16"},
		"the same":       {func(c *config.NodeConfig) { c.Join.Server = "https://192.0.2.1" }, "https://192.0.2.1:6443", "theirs", "10.142.0.0/16"},
		"another server": {func(c *config.NodeConfig) { c.Join.Server = "https://192.0.2.2:6443" }, "https://192.0.2.2:6443", "theirs", "10.42.0.0/16"},
		"a kubeconfig":   {func(c *config.NodeConfig) { c.Join.Kubeconfig = "/k" }, "", "theirs", "10.42.0.0/16"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config.Default()
			c.DataDir = workerData(t).Dir
			tc.set(c)
			assert.NilError(t, rejoin(c, facts))
			c.Complete(facts)
			assert.NilError(t, c.Validate())
			assert.Equal(t, c.Join.Server, tc.server)
			assert.Equal(t, c.NodeName, tc.nodeName)
			assert.Equal(t, c.Cluster.PodCIDR, tc.pods)
			assert.Assert(t, c.Joins() && !c.ControlPlane.Embedded)
		})
	}
	c := config.Default()
	c.DataDir = t.TempDir()
	assert.NilError(t, rejoin(c, facts))
	assert.Assert(t, !c.Joins(), "an empty data dir must not configure a worker")
	broken := workerData(t)
	assert.NilError(t, os.WriteFile(broken.JoinRecord(), []byte("{"), 0o600))
	c.DataDir = broken.Dir
	assert.ErrorIs(t, rejoin(c, facts), errdefs.ErrPreflight)
}

// TestJoinCluster checks that a failed join leaves the config unchanged and clears the token, and that a single node does not join.
func TestJoinCluster(t *testing.T) {
	t.Parallel()
	with := func(change func(*config.NodeConfig)) *Node {
		c := config.Default()
		c.DataDir = t.TempDir()
		change(c)
		c.Complete(config.HostFacts{Hostname: "host"})
		log := logrus.New()
		log.SetOutput(t.Output())
		n := &Node{data: layout.NewData(c.DataDir), log: log, joinToken: "abcdef.0123456789abcdef"}
		n.cfg.Store(c)
		return n
	}
	single := with(func(*config.NodeConfig) {})
	before := single.Config()
	assert.NilError(t, joinCluster(t.Context(), single))
	assert.Assert(t, single.Config() == before)

	own := with(func(c *config.NodeConfig) { c.Join.Server = "https://192.0.2.1:6443" })
	assert.NilError(t, os.MkdirAll(own.data.PKI(), 0o700))
	assert.NilError(t, os.WriteFile(filepath.Join(own.data.PKI(), "ca.key"), nil, 0o600))
	before = own.Config()
	err := joinCluster(t.Context(), own)
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.ErrorContains(t, err, "contains the data of a control plane")
	assert.Assert(t, own.Config() == before && own.joinToken == "")
	_, err = os.Stat(own.data.JoinRecord())
	assert.ErrorIs(t, err, os.ErrNotExist)
}
