package node

import (
	"net"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/sirupsen/logrus"
)

// inheritedListeners are the listening sockets that the service manager passed to this process.
type inheritedListeners []*net.TCPListener

// takeListeners returns the listening sockets from the service manager and removes their variables from the environment
// (sd_listen_fds(3)).
func takeListeners(log logrus.FieldLogger) inheritedListeners {
	var out inheritedListeners
	for _, f := range activation.Files(true) {
		l, err := net.FileListener(f)
		_ = f.Close() // FileListener duplicates the descriptor
		if err != nil {
			log.WithError(err).Warnf("ignoring socket %s of the service manager", f.Name())
			continue
		}
		if tcp, ok := l.(*net.TCPListener); ok {
			out = append(out, tcp)
			continue
		}
		log.Warnf("ignoring socket %s of the service manager: not a TCP socket", f.Name())
		_ = l.Close()
	}
	return out
}

func (h inheritedListeners) addresses() []string {
	var out []string
	for _, l := range h {
		out = append(out, l.Addr().String())
	}
	return out
}

func (h inheritedListeners) close() {
	for _, l := range h {
		_ = l.Close() // the service manager has its own descriptor
	}
}
