package e2e

import (
	"strings"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// again checks what a running node answers to another `up`, and that a stopped node comes back with the flags of its last start.
func (n *testNode) again() {
	out := n.run(podLimit, append([]string{"up"}, n.args...)...)
	assert.Assert(n.t, cmp.Contains(out, "is already running"))
	_, stderr, code := n.try(podLimit, "up", "--set", "network.mtu=9000")
	assert.Equal(n.t, code, 1)
	assert.Assert(n.t, cmp.Contains(stderr, "network.mtu: node \""+n.name+"\" is running with 1500, requested: 9000"))
	was := n.status().APIServer
	port := was[strings.LastIndexByte(was, ':')+1:]
	assert.Assert(n.t, cmp.Contains(n.run(podLimit, "config", "effective"), "  port: "+port+"    # flag\n"))

	n.down()
	type effective struct {
		Origins map[string]config.Origin `json:"origins"`
	}
	stopped := answer[effective](n, "config", "effective")
	assert.Equal(n.t, stopped.Origins["api.port"], config.Origin{Kind: config.OriginFlag, Remembered: true})
	n.run(upLimit, "up")
	assert.Equal(n.t, n.status().APIServer, was)
	assert.Equal(n.t, n.status().State, status.NodeReady)
}
