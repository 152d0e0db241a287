package noderole

import (
	"context"
	"strconv"
	"testing"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
)

// TestReload checks that a reload restarts exactly the components whose flags change, passes the ports to the forwarder, and changes
// nothing if a field needs a new start.
func TestReload(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	flags := func(name string, value func(*config.NodeConfig) int) component.Component {
		return component.Component{Name: name, Render: func(e component.Env) (component.Rendered, error) {
			return component.Rendered{Name: name, Args: []string{strconv.Itoa(value(e.Config))}}, nil
		}}
	}
	n := &nodeRole{log: logrus.New(), cfg: cfg, env: component.Env{Config: cfg}, components: []component.Component{
		flags("a", func(c *config.NodeConfig) int { return c.Kubelet.MaxPods }),
		flags("b", func(c *config.NodeConfig) int { return c.ControlPlane.ClientQPS }),
		{Name: "not a program"},
	}}
	n.reloader.cfg = cfg
	var static []portfwd.Static
	n.ports = &portConfig{cfg: cfg, address: &nodeAddress{}, rt: layout.Runtime{Dir: t.TempDir()}, log: n.log, set: func(c portfwd.Config) { static = c.Static }}
	var units []supervisor.Unit
	for _, c := range n.components[:2] {
		r, err := c.Render(n.env)
		assert.NilError(t, err)
		n.reloader.add(r)
		units = append(units, supervisor.Unit{Name: c.Name, OneShot: true, Task: func(context.Context, func()) error { return nil }})
	}
	var err error
	n.group, err = supervisor.New(units, supervisor.Options{})
	assert.NilError(t, err)
	ended := make(chan error)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- n.group.Run(ctx) }()
	defer func() { stop(); assert.NilError(t, <-ended) }()
	assert.NilError(t, n.group.WaitFor(ctx, "a", supervisor.Done))

	next := *cfg
	next.Kubelet.MaxPods, next.Ports.Static = 50, []string{"8080:30080"}
	before := len(static)
	restarted, err := n.reload(&next)
	assert.NilError(t, err)
	assert.DeepEqual(t, restarted, []string{"a"})
	assert.DeepEqual(t, n.reloader.rendered["a"].Load().Args, []string{"50"})
	assert.Check(t, len(static) > before, "the forwarder has no new configuration")

	refused := next
	refused.ControlPlane.ClientQPS, refused.Network.MTU = 1, 9000
	_, err = n.reload(&refused)
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.Check(t, is.ErrorContains(err, "network.mtu: a change needs a new start of the node"))
	assert.Equal(t, n.reloader.cfg, &next)
}
