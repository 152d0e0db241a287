// Command kube-network-policies enforces the NetworkPolicies of a cluster for the
// pods of one node. It puts rules into the nftables of its network namespace that
// hand the first packet of each connection from or to a pod with a policy to user
// space, by an NFQUEUE, and answers there for each whether it may go on.
//
// It is a program of ours on the packages of kube-network-policies, because
// upstream's own main package runs as a pod only: it knows no kubeconfig, ends on
// SIGINT alone, leaving its rules after SIGTERM, and goes on in silence where the
// kernel refuses the rules. Flags that upstream has too have upstream's meaning.
// It runs inside the node's network namespace, on the side where the kubelet runs,
// and needs CAP_NET_ADMIN over that namespace and nothing else.
//
// It adds one rule of its own: upstream lets pass what processes of root send, for
// the sake of the kubelet's probes, and the port driver's connections are among
// them. Those that carry the address of somebody else are asked about all the same;
// see rules.go.
//
// It refuses what the node has no use for: AdminNetworkPolicy and what belongs to it.
//
// It ends with 0 after SIGTERM or SIGINT, with its rules removed, with 2 on bad
// flags, and with 1 and one line on standard error on any other fault. Rules that a
// killed one leaves let no new connection of a pod with a policy pass.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// version is that of upstream; set by the build.
var version = "unknown"

const program = "kube-network-policies"

func main() {
	opts, err := parseOptions(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, program+": error:", err)
		os.Exit(2)
	case opts.version:
		fmt.Println(program, version)
		return
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	if err := run(ctx, opts); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, program+": error:", err)
		os.Exit(1)
	}
}
