package node

import (
	"net"
	"strconv"

	"github.com/rootlessnode/rootlessnode/config"
)

// pickAPIPort replaces the port 0 of the API server by the one of the last start, or by a free one, which is kept with the data. The
// registry must have the node already.
func pickAPIPort(n *Node) error {
	cfg := *n.Config()
	if cfg.API.Port != 0 || cfg.Joins() {
		return nil
	}
	first, last, err := config.ParsePickRange(cfg.Ports.PickRange)
	if err != nil {
		return err
	}
	static := map[int]bool{}
	for _, s := range cfg.Ports.Static {
		if f, err := config.ParseForward(s); err == nil {
			for i := range f.Count {
				static[f.HostPort+i] = true
			}
		}
	}
	port, was, err := n.reg.PickAPIPort(n.data, first, last, func(port int) bool {
		return !static[port] && canListen(cfg.API.BindAddress, port)
	})
	if err != nil {
		return err
	}
	if was != 0 && was != port {
		n.log.Warnf("port %d of the last start is in use by another program: the API server now has port %d", was, port)
	}
	cfg.SetAPIPort(port)
	n.cfg.Store(&cfg)
	return cfg.Validate()
}

// canListen reports whether this process can listen on a TCP port now.
func canListen(address string, port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}
