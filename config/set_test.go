package config

import (
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestSet(t *testing.T) {
	t.Parallel()
	c := Default()
	for path, v := range map[string]string{
		"network.mtu": "65520", "network.ipv6": "true", "nodeName": "007", "logLevel": "debug",
		"timeouts.ready": "90s", "controlPlane.etcdQuotaBytes": "4294967296",
		"ports.bindAddresses": "127.0.0.1, ::1", "ports.static": `["1:2/udp"]`, "mounts.copyUp": "",
		"kubelet.evictionHard.memory.available": "50Mi", "nodeLabels.example.com/a.b": "c",
		"kubelet.featureGates.X": "false", "kubelet.extraConfig.serializeImagePulls": "false",
	} {
		assert.NilError(t, c.Set(path, v), path)
	}
	assert.Equal(t, c.Network.MTU, 65520)
	assert.Equal(t, c.Network.IPv6, true)
	assert.Equal(t, c.NodeName, "007")
	assert.Equal(t, c.Timeouts.Ready.D(), 90*time.Second)
	assert.Equal(t, c.ControlPlane.EtcdQuotaBytes, int64(4<<30))
	assert.DeepEqual(t, c.Ports.BindAddresses, []string{"127.0.0.1", "::1"})
	assert.DeepEqual(t, c.Ports.Static, []string{"1:2/udp"})
	assert.DeepEqual(t, c.Mounts.CopyUp, []string{})
	assert.Equal(t, c.Kubelet.EvictionHard["memory.available"], "50Mi")
	assert.Equal(t, c.Kubelet.EvictionHard["nodefs.available"], "1%")
	assert.DeepEqual(t, c.NodeLabels, map[string]string{"example.com/a.b": "c"})
	assert.DeepEqual(t, c.Kubelet.ExtraConfig, map[string]any{"serializeImagePulls": false})

	assert.NilError(t, c.Set("kubelet.evictionHard", "{pid.available: 1%}"))
	assert.DeepEqual(t, c.Kubelet.EvictionHard, map[string]string{"pid.available": "1%"})
}

func TestSetRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ path, value, want string }{
		{"network.mtu", "big", `set network.mtu: must be a whole number, got "big"`},
		{"network.mtu", "1.5", `set network.mtu: must be a whole number, got 1.5`},
		{"network.mtu", "null", `set network.mtu: must be a whole number, got "null"`},
		{"network.ipv6", "yes", `set network.ipv6: must be true or false, got "yes"`},
		{"network.ipv6", "1", `set network.ipv6: must be true or false, got 1`},
		{"network", "x", "set network: is a group of fields: specify one of them"},
		{"network.mtu.x", "1", "set network.mtu.x: network.mtu has no fields below it"},
		{"network.mtuu", "1", "set network.mtuu: unknown field network.mtuu, did you mean network.mtu?"},
		{"", "1", "set : unknown field "},
		{"kind", "x", "set kind: cannot be changed"},
		{"name", "x", "set name: cannot be set here"},
		{"timeouts.ready", "90", `set timeouts.ready: duration "90": must be a number with a unit, such as "90s" or "24h"`},
		{"kubelet.featureGates.X", "maybe", `set kubelet.featureGates.X: must be true or false, got "maybe"`},
		{"kubelet.evictionHard", "5", `set kubelet.evictionHard: must be a mapping to strings (quote numbers), got 5`},
		{"ports.static", "[1, 2]", `set ports.static: must be a list of strings, got [1,2]`},
		{"ports.static", "[", `set ports.static: line 1: did not find expected node content`},
	} {
		c := Default()
		err := c.Set(tc.path, tc.value)
		assert.Error(t, err, tc.want)
		assert.ErrorIs(t, err, errdefs.ErrConfig)
		assert.DeepEqual(t, c, Default())
	}
}
