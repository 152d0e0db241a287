// Command flanneld connects a Kubernetes node to the pod network: it reads the
// pod CIDR that the cluster assigned to the node, sets up a flannel backend
// (vxlan, host-gw or wireguard) for the other nodes, and writes subnet.env, from
// which the CNI configuration is made.
//
// It is a separate program on top of flannel's packages, because upstream's main
// package links backends whose modules cannot be downloaded. Its flags are flags
// of upstream with the same meaning. It runs inside the node's network namespace,
// like the kubelet.
//
// It does not support features that the node does not use: leases in etcd
// (--kube-subnet-mgr=false), finding its node through a Pod (NODE_NAME must be
// set), settings in FLANNELD_ variables, and other backends.
//
// It exits with 0 after SIGTERM or SIGINT, with 2 for invalid flags, and with 1
// and one line on standard error for other errors.
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
	// A second signal ends the process immediately.
	context.AfterFunc(ctx, stop)
	err = run(ctx, opts, os.Getenv("NODE_NAME"))
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "flanneld: error:", err)
		os.Exit(1)
	}
}
