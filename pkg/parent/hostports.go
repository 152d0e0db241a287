package parent

import (
	"context"
	"fmt"

	"github.com/rootlessnode/rootlessnode/internal/hostport"
)

// serveHostPorts opens connections for the node to its ports of the host's loopback (config.HostPorts), until stop is called. The list
// comes from the config of this process, so that processes inside cannot extend it.
func (r *run) serveHostPorts() (stop func(), err error) {
	ports := r.Config.HostPorts()
	if len(ports) == 0 {
		return func() {}, nil
	}
	l, err := hostport.Listen(r.Runtime.HostSocket())
	if err != nil {
		return nil, fmt.Errorf("listen for connections to host ports: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := hostport.Serve(ctx, l, ports, r.Log); err != nil {
			r.Log.WithError(err).Warn("serve host ports; they are no longer reachable from inside")
		}
	}()
	return func() { cancel(); <-done }, nil
}
