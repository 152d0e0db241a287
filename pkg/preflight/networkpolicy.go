package preflight

import (
	"context"

	"github.com/rootlessnode/rootlessnode/config"
)

// bridgeFilter is there once the kernel shows packets between the ports of a bridge to the packet filter.
const bridgeFilter = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// Rules to try: one that every nftables takes, and the one that hands packets to a program.
const (
	plainRule = "add table inet tried\nadd chain inet tried c\nadd rule inet tried c counter\n"
	queueRule = "add table inet tried\nadd chain inet tried c\nadd rule inet tried c queue num 100\n"
)

// checkNetworkPolicy tries what kube-network-policies does, where it is switched on.
func checkNetworkPolicy(ctx context.Context, h *host) []Finding {
	if !h.cfg.EnforcesPolicies() {
		return []Finding{pass("not switched on: nothing of the node enforces NetworkPolicies")}
	}
	var found []Finding
	if h.cfg.CNI == config.CNIFlannel && !h.exists(bridgeFilter) {
		f := fail("the kernel module br_netfilter is not loaded: pods of the node would reach one another past their policies")
		f.fix.add(loadModules("br_netfilter")...)
		f.fix.setup = true
		found = append(found, f)
	}
	return orPass(append(found, h.queues(ctx)...), "the kernel hands packets to kube-network-policies (nft_queue, br_netfilter)")
}

func (h *host) queues(ctx context.Context) []Finding {
	nft := h.lookPath("nft")
	if nft == "" {
		// RootlessKit keeps clients' addresses by it, without which policies are not for them.
		f := fail("not found on PATH: nft")
		f.fix.programs = []string{"nft"}
		return []Finding{f}
	}
	if err := h.probes.PacketRules(ctx, nft, plainRule); err != nil {
		return []Finding{warn("whether the kernel has nftables' queue expression could not be tried: %v", err)}
	}
	err := h.probes.PacketRules(ctx, nft, queueRule)
	if err == nil {
		return nil
	}
	f := fail("the kernel has no nft queue expression (CONFIG_NFT_QUEUE), by which kube-network-policies sees packets: %v", err)
	f.fix.add(loadModules("nft_queue", "nfnetlink_queue")...)
	f.fix.add("# no such module: this kernel was built without; take one with CONFIG_NFT_QUEUE and CONFIG_NETFILTER_NETLINK_QUEUE, as",
		"# distributions ship it, or do without: --set networkPolicy=none")
	return []Finding{f}
}
