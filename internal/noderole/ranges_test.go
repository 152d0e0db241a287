package noderole

import (
	"net/netip"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// TestRanges tests that packets to unused pod and Service addresses do not leave the node, with hosts outside that have such
// addresses, and that pods and Services can be reached.
func TestRanges(t *testing.T) {
	t.Parallel()
	runInNode(t, "TestRangesInside")
}

// TestRangesInside is the part of TestRanges that runs in the node's network namespace.
func TestRangesInside(t *testing.T) {
	host, pod := connectNode(t)
	outside := []string{"10.42.7.7", "10.43.0.5", "10.43.99.9", "fd00:10:42::7", "fd00:10:43::9"}
	host.do(t, func() {
		for _, ip := range outside {
			address, flag := netip.MustParseAddr(ip), ""
			if address.Is6() {
				flag = " nodad" // usable at once
			}
			script(t, "ip addr add "+netip.PrefixFrom(address, address.BitLen()).String()+" dev lo"+flag)
			serveEcho(t, netip.AddrPortFrom(address, 7000).String())
		}
	})
	pod.do(t, func() { serveEcho(t, "10.42.0.2:7000") })
	serveEcho(t, "192.0.2.100:7000") // a pod of the node's network
	check := func(reachable bool) {
		t.Helper()
		for _, ip := range outside {
			try := func(network string) {
				err := echo(network, netip.AddrPortFrom(netip.MustParseAddr(ip), 7000).String())
				assert.Check(t, reachable == (err == nil) && (reachable || isRefused(err)), "%s to %s: %v", network, ip, err)
			}
			try("tcp")
			try("udp")
			pod.do(t, func() { try("tcp") }) // the kernel does not report unreachable hosts to UDP sockets
		}
	}
	cfg := config.Default()
	cfg.Network.IPv6 = true
	check(true)
	assert.NilError(t, blockPodRanges(cfg))
	assert.NilError(t, blockPodRanges(cfg), "it can be repeated")
	assert.Equal(t, len(blockServiceRanges(t.Context(), cfg)), 0)
	assert.Equal(t, len(blockServiceRanges(t.Context(), cfg)), 0)
	check(false)

	// The node's own connections to a Service, as kube-proxy translates them, reach a pod.
	script(t, `
nft add table ip proxy
nft add chain ip proxy out { type nat hook output priority -100 ; }
nft add chain ip proxy pre { type nat hook prerouting priority dstnat ; }
nft add rule ip proxy out ip daddr 10.43.0.5 dnat to 10.42.0.2
nft add rule ip proxy pre ip daddr 10.43.0.5 dnat to 192.0.2.100
`)
	assert.Check(t, echo("tcp", "10.43.0.5:7000"))
	pod.do(t, func() { assert.Check(t, echo("udp", "10.43.0.5:7000")) })
	script(t, "nft delete table ip proxy")

	// A pod network with a single node has a route to the same range.
	script(t, "ip route add "+cfg.Cluster.PodCIDR+" via 192.0.2.2")
	assert.Check(t, echo("tcp", "10.42.7.7:7000"))
	script(t, "ip route del "+cfg.Cluster.PodCIDR+" via 192.0.2.2")

	testutil.Require(t, testutil.Program("iptables"), testutil.Program("ip6tables"))
	script(t, "nft flush ruleset")
	assert.NilError(t, rejectWithIPTables(t.Context(), netip.MustParsePrefix(cfg.Cluster.ServiceCIDR)))
	assert.NilError(t, rejectWithIPTables(t.Context(), netip.MustParsePrefix(cfg.Cluster.ServiceCIDRv6)))
	check(false)
}
