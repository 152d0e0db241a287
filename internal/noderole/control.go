package noderole

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// startServers serves the status and exec sockets until ctx ends. Both sockets exist when it returns.
func (n *nodeRole) startServers(ctx context.Context) (*errgroup.Group, error) {
	nodeSocket, err := status.Listen(n.rt.NodeSocket())
	if err != nil {
		return nil, fmt.Errorf("listen for status: %w", err)
	}
	execSocket, err := nodeexec.Listen(n.rt.ExecSocket())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for exec: %w", err), nodeSocket.Close())
	}
	g := new(errgroup.Group)
	g.Go(func() error { return status.Serve(ctx, nodeSocket, n.hub, control{n, n.resourceUsage()}) })
	// In the environment of exec programs, kubectl, ctr and crictl find the node's endpoints.
	env := append(append(n.baseEnv(), "KUBECONFIG="+insideAdmin), runtime.ClientEnv(n.runtime, n.env.Storage)...)
	g.Go(func() error {
		return nodeexec.Serve(ctx, execSocket, nodeexec.Options{Env: env, CgroupFor: n.execCgroup, Log: n.log})
	})
	return g, nil
}

// control implements the requests of the status socket.
type control struct {
	n     *nodeRole
	usage *resourceUsage
}

func (c control) Stop(reason string, podLimit time.Duration) error {
	c.n.podLimit.Store(int64(podLimit))
	if reason == "" {
		reason = "stop requested through the status socket"
	}
	c.n.stop(errors.New(reason))
	return nil
}

func (c control) Restart(component string) error {
	if err := c.n.group.Restart(component); err != nil {
		return errdefs.Class(errdefs.ErrConfig, err)
	}
	return nil
}

func (c control) Reload(raw json.RawMessage) ([]string, error) {
	cfg := &config.NodeConfig{}
	if err := json.Unmarshal(raw, cfg); err != nil {
		return nil, errdefs.Config("decode the config: %w", err)
	}
	return c.n.reload(cfg)
}

func (c control) AddForward(forward string) (string, error) { return c.n.ports.add(forward) }

func (c control) Metrics(context.Context) ([]byte, error) {
	usage, err := cgroupv2.ReadSurvey(layout.InsideCgroup)
	s := c.n.hub.Snapshot()
	return nodeMetrics(&s, usage), err
}

func (c control) ResourceUsage(ctx context.Context) ([]byte, error) { return c.usage.text(ctx) }

func (c control) RemoveForward(forward string) (string, error) { return c.n.ports.remove(forward) }

// execCgroup creates a leaf cgroup for a program that `rootlessnode exec` runs.
func (n *nodeRole) execCgroup(id string) (string, func(), error) {
	name := leaf("exec/" + id)
	dir, err := n.tree.EnsureLeaf(name)
	if err != nil {
		return "", nil, err
	}
	return dir, func() {
		if err := n.tree.Remove(name); err != nil {
			n.log.WithError(err).Warn("remove the cgroup of an exec program")
		}
	}, nil
}
