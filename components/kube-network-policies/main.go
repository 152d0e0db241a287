// Command kube-network-policies enforces the NetworkPolicies of a cluster for the
// pods of one node. It adds rules to the nftables of its network namespace that
// pass the first packet of each connection from or to a pod with a policy to user
// space, through an NFQUEUE, and accepts or drops each of these packets.
//
// It is a separate program on top of the packages of kube-network-policies, because
// upstream's main package runs only as a pod: it does not support a kubeconfig, stops
// only on SIGINT and leaves its rules after SIGTERM, and does not report an error if
// the kernel rejects the rules. Flags that upstream also has have the same meaning.
// It runs inside the node's network namespace, like the kubelet, and needs only
// CAP_NET_ADMIN over that namespace.
//
// It adds one rule of its own. Upstream accepts connections from processes of root,
// because of the kubelet's probes. The connections of the port driver are from root
// too. The rule passes those with the address of another client to the queue; see
// rules.go.
//
// It does not support AdminNetworkPolicy, which the node does not use.
//
// It exits with 0 after SIGTERM or SIGINT and removes its rules, with 2 for invalid
// flags, and with 1 and one line on standard error for other errors. If it is killed,
// its rules remain and block new connections of pods with a policy.
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

// version is the version of upstream. The build sets it.
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
	// A second signal ends the process immediately.
	context.AfterFunc(ctx, stop)
	if err := run(ctx, opts); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, program+": error:", err)
		os.Exit(1)
	}
}
