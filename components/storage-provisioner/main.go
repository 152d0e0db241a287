// Command storage-provisioner provides the storage of a cluster on one node: it creates
// a directory and a PersistentVolume for each claim of its storage classes, and removes
// both when the claim has been deleted. It also creates the default StorageClass.
//
// It runs inside the node's namespaces, like the kubelet, so that it can remove files of
// all users in pods. It starts no pods.
//
// It exits with 0 after SIGTERM or SIGINT, with 2 for invalid flags, and with 1 and one
// line on standard error for other errors.
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

// version is the version of the library that finds claims and volumes. The build sets it.
var version = "unknown"

const program = "storage-provisioner"

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
