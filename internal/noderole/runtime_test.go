package noderole

import (
	"context"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// TestExternalRuntime checks that the kubelet needs the unit that waits for a runtime, and that the pods stop before it.
func TestExternalRuntime(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.CRI.Runtime, cfg.CRI.Endpoint = config.RuntimeExternal, "unix:///run/mine.sock"
	n := &nodeRole{cfg: cfg, runtime: runtime.Of(cfg), env: component.Env{Config: cfg}, components: catalogue.Enabled(cfg)}
	wait := n.runtime.Unit()
	found := 0
	for _, c := range n.components {
		switch c.Name {
		case wait:
			found++
			u := n.waitUnit(c)
			assert.Assert(t, u.Name == wait && u.Task != nil && u.GiveUpAfter == 0 && !u.Essential)
		case "kubelet":
			assert.DeepEqual(t, c.Needs(n.env), component.NeedReady(wait, component.UnitStaleNode))
		}
	}
	assert.Equal(t, found, 1)
	pods := (&podStopper{cfg: cfg}).unit(wait, n.backoff())
	assert.DeepEqual(t, pods.Needs, component.NeedReady(wait))
	assert.Assert(t, pods.BeforeStop != nil)
}

// TestPodNetwork checks that pods get a network only after policies are enforced.
func TestPodNetwork(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		cni, policy string
		want        [][]string
	}{
		{config.CNIFlannel, config.NetworkPolicyNone, [][]string{{"flannel"}}},
		{config.CNIFlannel, config.NetworkPolicyKube, [][]string{{"flannel", "kube-network-policies"}}},
		{config.CNINone, config.NetworkPolicyKube, nil},
	} {
		cfg := config.Default()
		cfg.CNI, cfg.NetworkPolicy = tc.cni, tc.policy
		n := &nodeRole{cfg: cfg, components: catalogue.Enabled(cfg)}
		var got [][]string
		n.podNetwork(func(_ string, _ func(context.Context) error, needed ...string) supervisor.Unit {
			got = append(got, needed)
			return supervisor.Unit{}
		})
		assert.DeepEqual(t, got, tc.want)
	}
}
