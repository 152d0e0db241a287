package noderole

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// Packets to addresses of the pod and Service ranges must not leave the node through its default route: there they could
// reach hosts that have the same addresses. Both mechanisms are in place before anything is forwarded.

// unusedMetric is the lowest priority of a route, so that routes of pod networks to the same range take precedence.
const unusedMetric = "4294967295"

// blockPodRanges makes pod addresses that do not exist unreachable. The routes to existing pods are more specific.
func blockPodRanges(cfg *config.NodeConfig) error {
	for _, pods := range cfg.PodCIDRs() {
		if err := setRoute("unreachable", pods, "metric", unusedMetric); err != nil {
			return err
		}
	}
	return nil
}

// setRoute replaces a route of the node. The arguments are those of ip-route(8).
func setRoute(args ...string) error {
	out, err := exec.Command("ip", append([]string{"route", "replace"}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip route replace %s: %w", strings.Join(args, " "), proc.Failure(err, out))
	}
	return nil
}

// blockServiceRanges rejects packets to Services that kube-proxy has not translated. A route cannot do this, because the
// kernel looks up the route of the node's own connections before the translation. It returns warnings for the user.
func blockServiceRanges(ctx context.Context, cfg *config.NodeConfig) (warnings []string) {
	for _, services := range cfg.ServiceCIDRs() {
		prefix, err := netip.ParsePrefix(services)
		if err != nil {
			continue // Validate rejects it
		}
		if err := loadRules(ctx, serviceRules(prefix)); err != nil {
			if iptErr := rejectWithIPTables(ctx, prefix); iptErr != nil {
				warnings = append(warnings, fmt.Sprintf(
					"connections to addresses in %s that are not addresses of a Service leave the node: %v", prefix, errors.Join(err, iptErr)))
			}
		}
	}
	return warnings
}

// serviceTable is the name of the table that blockServiceRanges creates.
const serviceTable = "rootlessnode-services"

// serviceRules renders the table for a Service range. It has a lower priority than kube-proxy's filter, which decides first.
func serviceRules(services netip.Prefix) string {
	family := "ip"
	if services.Addr().Is6() {
		family = "ip6"
	}
	table := family + " " + serviceTable
	var b strings.Builder
	fmt.Fprintf(&b, "add table %[1]s\ndelete table %[1]s\nadd table %[1]s\n", table)
	for _, hook := range []string{"output", "forward"} {
		fmt.Fprintf(&b, "add chain %s %s { type filter hook %[2]s priority 10; }\n", table, hook)
		fmt.Fprintf(&b, "add rule %s %s %s daddr %s reject\n", table, hook, family, services)
	}
	return b.String()
}

// rejectWithIPTables does the same as serviceRules on a host that has only iptables.
func rejectWithIPTables(ctx context.Context, services netip.Prefix) error {
	program := "iptables"
	if services.Addr().Is6() {
		program = "ip6tables"
	}
	for _, chain := range []string{"OUTPUT", "FORWARD"} {
		if err := runCommand(exec.CommandContext(ctx, program, "-w", "-A", chain, "-d", services.String(), "-j", "REJECT")); err != nil {
			return err
		}
	}
	return nil
}
