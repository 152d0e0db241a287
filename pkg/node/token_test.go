package node

import (
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestServerHost(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ bind, nodeIP, want string }{
		{"192.0.2.1", "", "192.0.2.1"}, {"192.0.2.1", "192.0.2.9", "192.0.2.1"}, {"0.0.0.0", "192.0.2.9", "192.0.2.9"},
		{"::", "192.0.2.9", "192.0.2.9"}, {"2001:db8::1", "", "2001:db8::1"},
	} {
		c := config.Default()
		c.API.BindAddress, c.NodeIP = tc.bind, tc.nodeIP
		got, err := serverHost(t.Context(), c)
		assert.NilError(t, err)
		assert.Equal(t, got, tc.want, "%+v", tc)
	}
	c := config.Default()
	c.API.BindAddress, c.NodeIP = "0.0.0.0", "none"
	_, err := serverHost(t.Context(), c)
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.Assert(t, is.Len(errdefs.ReportOf(err).Hints, 1))
}

func TestTokensOfNodesWithoutCluster(t *testing.T) {
	t.Parallel()
	with := func(change func(*config.NodeConfig)) *Node {
		c := config.Default()
		change(c)
		dir := t.TempDir()
		n := &Node{data: layout.NewData(dir), rt: layout.Runtime{Dir: dir + "/run"}}
		n.cfg.Store(c)
		return n
	}
	alone := with(func(*config.NodeConfig) {})
	worker := with(func(c *config.NodeConfig) { c.Join.Server = "https://a.example:6443" })
	unstarted := with(func(c *config.NodeConfig) { c.API.BindAddress, c.NodeName = "192.0.2.1", "a" })
	for n, want := range map[*Node]string{alone: "the node is not running", worker: "is a worker", unstarted: "was never started"} {
		_, err := n.CreateJoinToken(t.Context(), JoinTokenOptions{TTL: time.Hour})
		assert.ErrorContains(t, err, want)
		assert.Assert(t, is.Len(errdefs.ReportOf(err).Hints, 1))
	}
	for n, want := range map[*Node]string{alone: "was never started", worker: "is a worker"} {
		_, err := n.JoinTokens(t.Context())
		assert.ErrorContains(t, err, want)
	}
	for _, bad := range []JoinTokenOptions{{NodeName: "b", Reusable: true}, {NodeName: "A_b"}, {NodeName: unstarted.Config().NodeName}} {
		_, err := unstarted.CreateJoinToken(t.Context(), bad)
		assert.ErrorIs(t, err, errdefs.ErrConfig, "%+v", bad)
	}
	const secret = "0123456789abcdef"
	for _, bad := range []string{"", "x", "abc123456." + secret, secret} {
		err := alone.DeleteJoinToken(t.Context(), bad)
		assert.ErrorIs(t, err, errdefs.ErrConfig)
		assert.Assert(t, !strings.Contains(err.Error(), secret))
	}
	assert.ErrorContains(t, alone.DeleteJoinToken(t.Context(), "abc123."+secret), "was never started")
}
