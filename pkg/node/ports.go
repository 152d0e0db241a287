package node

import (
	"context"
	"slices"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// AddForward makes a forward by hand, "[HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]" as in config.ParseForward, and returns it as
// soon as each of its ports is open or refused. It is kept over restarts of the node, until RemoveForward. One whose port
// is refused is kept too, and opens when it can be: look at the State of what is returned.
//
// Errors: of class ErrConfig when it is malformed, ErrNotRunning when the node does not run.
func (n *Node) AddForward(ctx context.Context, forward string) ([]status.Port, error) {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	owner, err := c.AddForward(ctx, forward)
	if err != nil {
		return nil, err
	}
	return waitPorts(ctx, c, owner, func(ports []status.Port) bool {
		return len(ports) > 0 && !slices.ContainsFunc(ports, func(p status.Port) bool { return p.State == status.PortPending })
	})
}

// RemoveForward takes a forward made by hand back, named as it was made or by its host port, and returns when it is
// closed. One that was not made by hand is an error of class ErrConfig.
func (n *Node) RemoveForward(ctx context.Context, forward string) error {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	owner, err := c.RemoveForward(ctx, forward)
	if err != nil {
		return err
	}
	_, err = waitPorts(ctx, c, owner, func(ports []status.Port) bool { return len(ports) == 0 })
	return err
}

// WatchStatus calls fn with the status now and after every change, until the node or ctx ends or fn returns an error.
func (n *Node) WatchStatus(ctx context.Context, fn func(*status.Status) error) error {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	for since := uint64(0); ; {
		s, err := c.WaitStatus(ctx, since)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
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

// waitPorts returns the forwards of an owner as soon as they are as wanted.
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
