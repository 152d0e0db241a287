package node

import (
	"context"
	"net"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/supervisor"
)

// bootNetworkLimit is what DHCP usually needs, and some more.
const bootNetworkLimit = 90 * time.Second

// awaitNetwork lets a node of a cluster with others wait for its address. A service manager may start us as the host boots, and a
// user's one knows no network-online.target (systemd.special(7)). Who types a command is told at once instead, as is everybody
// by the preflight when the address is still missing.
func (n *Node) awaitNetwork(ctx context.Context) {
	cfg := n.Config()
	if !cfg.MultiNode() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bootNetworkLimit)
	defer cancel()
	told := false
	_ = supervisor.Poll(100*time.Millisecond, "an address of this host", func(ctx context.Context) error {
		ip, err := preflight.NodeAddress(ctx, cfg)
		if err == nil {
			var c net.PacketConn
			if c, err = net.ListenPacket("udp4", net.JoinHostPort(ip.String(), "0")); err == nil { //nolint:noctx // asks nobody
				return c.Close()
			}
		}
		if !told {
			n.log.WithError(err).Info("waiting for an address that other nodes can reach")
			told = true
		}
		return err
	})(ctx)
}
