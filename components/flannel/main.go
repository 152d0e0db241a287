// Command flanneld gives a Kubernetes node its part of the pod network: it
// takes the pod CIDR that the cluster assigned to the node, sets up a flannel
// backend (vxlan, host-gw or wireguard) to the other nodes, and writes
// subnet.env, from which the CNI configuration is made.
//
// It is a program of ours on flannel's packages, because upstream's own main
// package links backends whose modules cannot be fetched. The flags it has are
// upstream's, with upstream's meaning. It runs inside the node's network
// namespace, on the side where the kubelet runs.
//
// It refuses what the node has no use for: leases kept in etcd
// (--kube-subnet-mgr=false), finding its node through a Pod (NODE_NAME must be
// set), settings from FLANNELD_ variables, and other backends.
//
// It ends with 0 after SIGTERM or SIGINT, with 2 on bad flags, and with 1 and
// one line on standard error on any other fault.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/flannel-io/flannel/pkg/version"
)

func main() {
	opts, err := parseOptions(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "flanneld: error:", err)
		os.Exit(2)
	case opts.version:
		fmt.Println(version.Version)
		return
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	err = run(ctx, opts, os.Getenv("NODE_NAME"))
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "flanneld: error:", err)
		os.Exit(1)
	}
}
