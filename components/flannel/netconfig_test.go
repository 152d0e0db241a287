package main

import (
	"testing"

	"gotest.tools/v3/assert"
)

func TestParseNetConfig(t *testing.T) {
	config, err := parseNetConfig([]byte(`{
		"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00::/48",
		"EnableNFTables": true, "Backend": {"Type": "vxlan", "Port": 8472}}`))
	assert.NilError(t, err)
	assert.Equal(t, config.BackendType, "vxlan")
	assert.Equal(t, config.Network.String(), "10.244.0.0/16")
	assert.Equal(t, config.IPv6Network.String(), "fd00::/48")
	assert.Assert(t, config.EnableIPv4 && config.EnableIPv6 && config.EnableNFTables)
}

func TestParseNetConfigRefuses(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"misspelt key":      {`{"Network": "10.0.0.0/8", "EnableNFtable": true, "Backend": {"Type": "vxlan"}}`, "EnableNFtable"},
		"default backend":   {`{"Network": "10.0.0.0/8"}`, `"udp"`},
		"cloud backend":     {`{"Network": "10.0.0.0/8", "Backend": {"Type": "tencent-vpc"}}`, "tencent-vpc"},
		"no network":        {`{"Backend": {"Type": "host-gw"}}`, "Network is not"},
		"no IPv6 network":   {`{"Network": "10.0.0.0/8", "EnableIPv6": true, "Backend": {"Type": "vxlan"}}`, "IPv6Network is not"},
		"no address family": {`{"EnableIPv4": false, "Backend": {"Type": "vxlan"}}`, "neither"},
		"not JSON":          {`Network: 10.0.0.0/8`, "invalid character"},
		"bad network":       {`{"Network": "10.0.0/8", "Backend": {"Type": "vxlan"}}`, "10.0.0/8"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseNetConfig([]byte(test.text))
			assert.ErrorContains(t, err, test.want)
		})
	}
}

func TestParseSubnetFile(t *testing.T) {
	prev, err := parseSubnetFile("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\n" +
		"FLANNEL_IPV6_NETWORK=fd00::/48\nFLANNEL_IPV6_SUBNET=fd00:0:0:3::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n")
	assert.NilError(t, err)
	assert.Equal(t, prev.network.String(), "10.244.0.0/16")
	assert.Equal(t, prev.subnet.String(), "10.244.3.0/24")
	assert.Equal(t, prev.network6.String(), "fd00::/48")
	assert.Equal(t, prev.subnet6.String(), "fd00:0:0:3::/64")

	none, err := parseSubnetFile("")
	assert.NilError(t, err)
	assert.Assert(t, none.network.Empty() && none.subnet.Empty() && none.network6.Empty() && none.subnet6.Empty())

	for _, text := range []string{"FLANNEL_SUBNET=nonsense", "FLANNEL_SUBNET=fd00::1/64", "FLANNEL_IPV6_SUBNET=10.0.0.1/8"} {
		_, err := parseSubnetFile(text)
		assert.ErrorContains(t, err, "FLANNEL_")
	}
}
