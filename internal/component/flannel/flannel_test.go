package flannel

import (
	"encoding/json"
	"net/netip"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

func TestRender(t *testing.T) {
	t.Parallel()
	fixture.Golden(t, Render)
}

func TestRenderInACluster(t *testing.T) {
	t.Parallel()
	fixture.GoldenCluster(t, Render)
}

const lease = `FLANNEL_NETWORK=10.42.0.0/16
FLANNEL_SUBNET=10.42.3.1/24
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
`

const leaseV6 = `FLANNEL_IPV6_NETWORK=fd00:10:42::/56
FLANNEL_IPV6_SUBNET=fd00:10:42:3::1/64
`

func TestRenderCNI(t *testing.T) {
	t.Parallel()
	env, err := ParseSubnetEnv([]byte(lease))
	assert.NilError(t, err)
	f, err := RenderCNI(fixture.Env(), env)
	assert.NilError(t, err)
	golden.AssertBytes(t, f.Data, "cni.golden")

	env, err = ParseSubnetEnv([]byte(lease + leaseV6))
	assert.NilError(t, err)
	env.IPMasq = false
	f, err = RenderCNI(fixture.Poor(), env)
	assert.NilError(t, err)
	golden.AssertBytes(t, f.Data, "cni-poor.golden")
}

func TestParseSubnetEnv(t *testing.T) {
	t.Parallel()
	got, err := ParseSubnetEnv([]byte(lease + "FLANNEL_OTHER=whatever\n\n"))
	assert.NilError(t, err)
	want := SubnetEnv{
		Network: netip.MustParsePrefix("10.42.0.0/16"), Subnet: netip.MustParsePrefix("10.42.3.1/24"), MTU: 1450, IPMasq: true,
	}
	assert.Equal(t, got, want)
	got, err = ParseSubnetEnv([]byte(lease + leaseV6))
	assert.NilError(t, err)
	want.NetworkV6, want.SubnetV6 = netip.MustParsePrefix("fd00:10:42::/56"), netip.MustParsePrefix("fd00:10:42:3::1/64")
	assert.Equal(t, got, want)
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"empty":         {"", []string{"FLANNEL_NETWORK is missing", "FLANNEL_SUBNET is missing", "FLANNEL_MTU is missing", "FLANNEL_IPMASQ is missing"}},
		"half":          {"FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUB", []string{"line 2", "FLANNEL_SUBNET is missing"}},
		"all wrong":     {"FLANNEL_NETWORK=x\nFLANNEL_SUBNET=::/64\nFLANNEL_MTU=-1\nFLANNEL_IPMASQ=perhaps", []string{"FLANNEL_NETWORK:", "not an IPv4 network", "FLANNEL_MTU: -1", "FLANNEL_IPMASQ:"}},
		"other network": {"FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.43.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true", []string{"10.43.0.1/24 is not in network"}},
		"half of IPv6":  {lease + "FLANNEL_IPV6_NETWORK=fd00::/56", []string{"FLANNEL_IPV6_SUBNET is missing"}},
		"IPv4 as IPv6":  {lease + "FLANNEL_IPV6_NETWORK=10.0.0.0/8\nFLANNEL_IPV6_SUBNET=x", []string{"not an IPv6 network", "FLANNEL_IPV6_SUBNET:"}},
		"other IPv6":    {lease + "FLANNEL_IPV6_NETWORK=fd00:1::/56\nFLANNEL_IPV6_SUBNET=fd00:2::1/64", []string{"fd00:2::1/64 is not in network"}},
		"too wide":      {"FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.0.1/8\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true", []string{"is not in network"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseSubnetEnv([]byte(c.text))
			for _, want := range c.want {
				assert.ErrorContains(t, err, want)
			}
		})
	}
}

func FuzzParseSubnetEnv(f *testing.F) {
	f.Add([]byte(lease))
	f.Add([]byte(lease + leaseV6))
	f.Add([]byte("FLANNEL_NETWORK=10.42.0.0/16\r\nFLANNEL_SUBNET"))
	f.Fuzz(func(t *testing.T, data []byte) {
		env, err := ParseSubnetEnv(data)
		if err != nil {
			return
		}
		file, err := RenderCNI(fixture.Env(), env)
		assert.NilError(t, err)
		assert.Assert(t, json.Valid(file.Data))
		assert.Assert(t, env.MTU >= minMTU && env.Network.Overlaps(env.Subnet))
	})
}
