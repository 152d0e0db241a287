package preflight

import (
	"context"

	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
)

// bridgeFilter exists if the kernel passes packets between the ports of a bridge through the packet filter.
const bridgeFilter = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// Rules for the test: one that every nftables supports, and one that passes packets to a program.
const (
	plainRule = "add table inet tried\nadd chain inet tried c\nadd rule inet tried c counter\n"
	queueRule = "add table inet tried\nadd chain inet tried c\nadd rule inet tried c queue num 100\n"
)

// checkNetworkPolicy checks the requirements of kube-network-policies if it is enabled.
func checkNetworkPolicy(ctx context.Context, h *host) []Finding {
	if !catalogue.FiltersPackets(h.cfg) {
		return []Finding{pass("not enabled: the node does not enforce NetworkPolicies")}
	}
	var found []Finding
	if catalogue.BuildsPodNetwork(h.cfg) && !h.exists(bridgeFilter) {
		f := fail("the kernel module br_netfilter is not loaded: traffic between pods of the node would bypass their policies")
		f.fix.add(loadModules("br_netfilter")...)
		f.fix.setup = true
		found = append(found, f)
	}
	return orPass(append(found, checkQueue(ctx, h)...), "the kernel can pass packets to kube-network-policies (nft_queue, br_netfilter)")
}

func checkQueue(ctx context.Context, h *host) []Finding {
	nft := h.lookPath("nft")
	if nft == "" {
		// RootlessKit needs nft to preserve the client addresses that policies match.
		f := fail("not found on PATH: nft")
		f.fix.programs = []string{"nft"}
		return []Finding{f}
	}
	if err := h.probes.PacketRules(ctx, nft, plainRule); err != nil {
		return []Finding{warn("cannot test whether the kernel supports nftables' queue expression: %v", err)}
	}
	err := h.probes.PacketRules(ctx, nft, queueRule)
	if err == nil {
		return nil
	}
	f := fail("the kernel does not support nftables' queue expression (CONFIG_NFT_QUEUE), which kube-network-policies needs: %v", err)
	f.fix.add(loadModules("nft_queue", "nfnetlink_queue")...)
	f.fix.add("# if there are no such modules: use a kernel with CONFIG_NFT_QUEUE and CONFIG_NETFILTER_NETLINK_QUEUE, such as those of",
		"# the distributions, or disable network policies: --set networkPolicy=none")
	return []Finding{f}
}
