package node

import (
	"context"
	"slices"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// AddForward adds a manual forward, "[HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]" as in config.ParseForward. It returns the ports of the
// forward as soon as none of them is pending. Check the State of each port: a refused or failed port is not an error, and the node
// opens it as soon as that is possible. The node keeps the forward over restarts, until RemoveForward.
//
// Errors: of class errdefs.ErrConfig if forward is malformed; errdefs.ErrNotRunning if the node is not running.
func (n *Node) AddForward(ctx context.Context, forward string) ([]status.Port, error) {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	owner, err := c.AddForward(ctx, forward)
	if err != nil {
		return nil, explain(n, err)
	}
	return waitPorts(ctx, c, owner, func(ports []status.Port) bool {
		return len(ports) > 0 && !slices.ContainsFunc(ports, func(p status.Port) bool { return p.State == status.PortPending })
	})
}

// RemoveForward removes a manual forward and returns when its ports are closed. forward is the text that was passed to AddForward,
// or the host port.
//
// Errors: of class errdefs.ErrConfig if there is no such manual forward; errdefs.ErrNotRunning if the node is not running.
func (n *Node) RemoveForward(ctx context.Context, forward string) error {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	owner, err := c.RemoveForward(ctx, forward)
	if err != nil {
		return explain(n, err)
	}
	_, err = waitPorts(ctx, c, owner, func(ports []status.Port) bool { return len(ports) == 0 })
	return err
}

// WatchStatus calls fn with the current status and again after every change. It returns nil when ctx ends or the node has
// stopped, or the error of fn.
//
// Errors: of class errdefs.ErrNotRunning if the node is not running.
func (n *Node) WatchStatus(ctx context.Context, fn func(*status.Status) error) error {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	for since := uint64(0); ; {
		s, err := c.WaitStatus(ctx, since)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return explain(n, err)
		}
		if s.ResourceVersion == since {
			continue
		}
		if err := fn(s); err != nil {
			return err
		}
		if s.State == status.NodeStopped {
			return nil
		}
		since = s.ResourceVersion
	}
}

// waitPorts waits until done returns true for the ports of owner, and returns these ports.
func waitPorts(ctx context.Context, c *status.Client, owner string, done func([]status.Port) bool) ([]status.Port, error) {
	for since := uint64(0); ; {
		s, err := c.WaitStatus(ctx, since)
		if err != nil {
			return nil, err
		}
		var ports []status.Port
		for _, p := range s.Ports {
			if p.Owner == owner {
				ports = append(ports, p)
			}
		}
		if done(ports) {
			return ports, nil
		}
		since = s.ResourceVersion
	}
}
