// Command rootlessnode-cri is a client of the container runtime (CRI) and of containerd's image store. The node role starts it to list
// and import images, to read the conditions of the runtime, and at `down`, after the kubelet has ended, to stop the pods.
// `rootlessnode images` and `rootlessnode top` start it inside the node. It is a separate program because its libraries would make every other role larger and slower to start.
// Package criclient defines its arguments and messages.
//
// Runs in: child.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/criclient/cristop"
	"github.com/rootlessnode/rootlessnode/internal/criclient/imagestore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rootlessnode-cri: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == criclient.StopPods:
		return stopPods(ctx)
	case len(args) == 2 && args[0] == criclient.Images:
		return list(ctx, args[1], cristop.Images)
	case len(args) == 2 && args[0] == criclient.Containers:
		return list(ctx, args[1], cristop.Containers)
	case len(args) == 2 && args[0] == criclient.Conditions:
		return list(ctx, args[1], cristop.Conditions)
	case len(args) == 3 && args[0] == criclient.ImportImages:
		return change(ctx, args[1], args[2], func(ctx context.Context, s *imagestore.Store, r criclient.ImportRequest) (*criclient.StoreResult, error) {
			return s.Import(ctx, os.Stdin, r)
		})
	case len(args) == 3 && args[0] == criclient.TagImage:
		return change(ctx, args[1], args[2], func(ctx context.Context, s *imagestore.Store, r criclient.TagRequest) (*criclient.StoreResult, error) {
			return s.Tag(ctx, r)
		})
	case len(args) == 3 && args[0] == criclient.PullImage:
		return change(ctx, args[1], args[2], func(ctx context.Context, s *imagestore.Store, r criclient.PullRequest) (*criclient.StoreResult, error) {
			var logins []criclient.Login
			if err := json.NewDecoder(os.Stdin).Decode(&logins); err != nil {
				return nil, fmt.Errorf("read logins: %w", err)
			}
			return s.Pull(ctx, r, logins)
		})
	case len(args) == 3 && args[0] == criclient.RemoveImages:
		return change(ctx, args[1], args[2], func(ctx context.Context, s *imagestore.Store, r criclient.RemoveRequest) (*criclient.StoreResult, error) {
			return s.Remove(ctx, r)
		})
	}
	return errors.New("unknown arguments: package criclient has the commands")
}

// change runs a request of the image store of the containerd at a socket, and prints its result.
func change[R any](ctx context.Context, socket, request string,
	run func(context.Context, *imagestore.Store, R) (*criclient.StoreResult, error),
) error {
	var r R
	if err := json.Unmarshal([]byte(request), &r); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	conn, err := cristop.Dial(socket)
	if err != nil {
		return fmt.Errorf("connect to the container runtime at %s: %w", socket, err)
	}
	defer func() { _ = conn.Close() }() // every call has returned
	store := imagestore.New(conn, imagestore.Options{
		Namespace: os.Getenv(criclient.EnvNamespace), Snapshotter: os.Getenv(criclient.EnvSnapshotter), CRI: cristop.Client{Conn: conn},
	})
	result, err := run(ctx, store, r)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// list prints what query returns for the runtime at a socket.
func list[T any](ctx context.Context, socket string, query func(context.Context, cristop.Conn) ([]T, error)) error {
	conn, err := cristop.Dial(socket)
	if err != nil {
		return fmt.Errorf("connect to the container runtime at %s: %w", socket, err)
	}
	defer func() { _ = conn.Close() }() // every call has returned
	found, err := query(ctx, conn)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

// stopPods stops the pods of the request on standard input. Its last report has the error, if any.
func stopPods(ctx context.Context) error {
	out := json.NewEncoder(os.Stdout)
	report := func(r criclient.Report) {
		if err := out.Encode(r); err != nil { // the node role has exited; everything inside exits with it
			os.Exit(1)
		}
	}
	err := stopRequested(ctx, report)
	if err != nil {
		report(criclient.Report{Error: err.Error()})
	}
	return err
}

func stopRequested(ctx context.Context, report func(criclient.Report)) error {
	var req criclient.Request
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
