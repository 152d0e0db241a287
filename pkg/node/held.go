package node

import (
	"net"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/sirupsen/logrus"
)

// held are listening sockets of the service manager's.
type held []*net.TCPListener

// takeHeld takes what the service manager has handed over, and its traces out of the environment (sd_listen_fds(3)).
func takeHeld(log logrus.FieldLogger) held {
	var out held
	for _, f := range activation.Files(true) {
		l, err := net.FileListener(f)
		_ = f.Close() // FileListener takes a copy
		if err != nil {
			log.WithError(err).Warnf("socket %s of the service manager is not used", f.Name())
			continue
		}
		if tcp, ok := l.(*net.TCPListener); ok {
			out = append(out, tcp)
			continue
		}
		log.Warnf("socket %s of the service manager is not used: it is not for TCP", f.Name())
		_ = l.Close() // nobody has used it
	}
	return out
}

func (h held) addresses() []string {
	var out []string
	for _, l := range h {
		out = append(out, l.Addr().String())
	}
	return out
}

func (h held) close() {
	for _, l := range h {
		_ = l.Close() // the service manager keeps its own
	}
}
