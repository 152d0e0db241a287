// Command rootlessnode-podstop stops the pods of a node through the container runtime (CRI). The node role starts it at
// `down`, after the kubelet has ended, writes a podstop.Request to its standard input and reads podstop.Reports from its
// standard output. It is a separate program because its libraries would make every other role larger and slower to start.
//
// Runs in: child.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rootlessnode/rootlessnode/internal/podstop"
	"github.com/rootlessnode/rootlessnode/internal/podstop/cristop"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	out := json.NewEncoder(os.Stdout)
	report := func(r podstop.Report) {
		if err := out.Encode(r); err != nil { // the node role has exited; everything inside exits with it
			os.Exit(1)
		}
	}
	if err := run(ctx, report); err != nil {
		report(podstop.Report{Error: err.Error()})
		os.Exit(1)
	}
}

func run(ctx context.Context, report func(podstop.Report)) error {
	var req podstop.Request
	if err := json.NewDecoder(os.Stdin).Decode(&req); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	conn, err := cristop.Dial(req.Socket)
	if err != nil {
		return fmt.Errorf("connect to the container runtime at %s: %w", req.Socket, err)
	}
	defer func() { _ = conn.Close() }() // every call has returned
	return cristop.Stop(ctx, cri.NewRuntimeServiceClient(conn), req, report)
}
