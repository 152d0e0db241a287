package node

import (
	"context"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// BeginStop starts the stop of a running node with a time limit for all of its pods together, instead of timeouts.podStop, and returns. Pods get
// their stop signal in any case. Node.Stop waits for the end.
//
// Errors: of class errdefs.ErrNotRunning if the node is not running; of class errdefs.ErrTimeout if it does not respond.
func BeginStop(ctx context.Context, n *Node, podLimit time.Duration) error {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	return explain(n, c.Stop(ctx, "stop requested", podLimit))
}
