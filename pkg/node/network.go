package node

import (
	"context"
	"net"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// bootNetworkLimit is the time to wait for the host's address: longer than DHCP usually takes.
const bootNetworkLimit = 90 * time.Second

// awaitNetwork waits until the host has the address by which other nodes reach this one, up to bootNetworkLimit. A service manager
// may start the node while the host boots, and systemd user managers have no network-online.target (systemd.special(7)). Only
// starts by a service manager wait. If the address is still missing, the preflight reports it. A single-node cluster does not
// wait.
func awaitNetwork(ctx context.Context, n *Node) {
	cfg := n.Config()
	if !cfg.MultiNode() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bootNetworkLimit)
	defer cancel()
	logged := false
	_ = supervisor.Poll(100*time.Millisecond, "an address of this host", func(ctx context.Context) error {
		ip, err := preflight.NodeAddress(ctx, cfg)
		if err == nil {
			var c net.PacketConn
			if c, err = net.ListenPacket("udp4", net.JoinHostPort(ip.String(), "0")); err == nil { //nolint:noctx // sends nothing
				return c.Close()
			}
		}
		if !logged {
			n.log.WithError(err).Info("waiting for an address that other nodes can reach")
			logged = true
		}
		return err
	})(ctx)
}
