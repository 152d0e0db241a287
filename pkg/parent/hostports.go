package parent

import (
	"context"
	"fmt"

	"github.com/rootlessnode/rootlessnode/pkg/hostport"
)

// serveHostPorts hands connections to network.hostPorts of the host's loopback in, until stop. The list is the config's of
// this process: what is inside cannot lengthen it.
func (r *run) serveHostPorts() (stop func(), err error) {
	if len(r.Config.Network.HostPorts) == 0 {
		return func() {}, nil
	}
	l, err := hostport.Listen(r.Runtime.HostSocket())
	if err != nil {
		return nil, fmt.Errorf("listen for connections to ports of the host: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := hostport.Serve(ctx, l, r.Config.Network.HostPorts, r.Log); err != nil {
			r.Log.WithError(err).Warn("ports of the host are no longer reached from inside")
		}
	}()
	return func() { cancel(); <-done }, nil
}
