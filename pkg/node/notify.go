package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// notifier sends the node's state to the service manager (sd_notify(3)).
type notifier struct {
	socket string
	// watchdog is the service manager's watchdog timeout; 0 if there is no watchdog.
	watchdog time.Duration
	// stopLimit is the time limit for stopping the node; 0 if it is not known.
	stopLimit time.Duration
	log       logrus.FieldLogger
	ready     bool
	stopping  bool
}

// stopSlack is added to stopLimit for the guard, which cleans up after the node has stopped.
const stopSlack = 15 * time.Second

// notifyLimit is the write timeout for notifications, because a service manager that does not read must not block the stop.
const notifyLimit = time.Second

// takeNotifier returns a notifier for the service manager that the environment names, or nil if it names none. It removes the
// variables from the environment; otherwise the components would notify the service manager too.
func takeNotifier(log logrus.FieldLogger) *notifier {
	socket := os.Getenv("NOTIFY_SOCKET")
	_ = os.Unsetenv("NOTIFY_SOCKET") // fails only for invalid names
	watchdog, err := daemon.SdWatchdogEnabled(true)
	if err != nil {
		log.WithError(err).Warn("read watchdog settings; sending no watchdog pings")
	}
	if socket == "" {
		return nil
	}
	return &notifier{socket: socket, watchdog: watchdog, log: log}
}

// send writes one datagram of assignments. It does not use daemon.SdNotify, which blocks if the service manager does not read.
func (n *notifier) send(assignments ...string) {
	c, err := net.Dial("unixgram", n.socket)
	if err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(notifyLimit)) // cannot fail on a socket
		_, err = c.Write([]byte(strings.Join(assignments, "\n")))
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		n.log.WithError(err).Warn("notify service manager")
	}
}

// notify sends the state in s, and READY=1 and STOPPING=1 once each.
func (n *notifier) notify(s *status.Status) {
	text := string(s.State)
	if s.Reason != "" {
		text += ": " + strings.ReplaceAll(s.Reason, "\n", " ")
	}
	out := []string{"STATUS=" + text}
	switch s.State {
	case status.NodeReady, status.NodeDegraded:
		if !n.ready {
			n.ready = true
			out = append(out, "READY=1")
		}
	case status.NodeStopping:
		if !n.stopping {
			n.stopping = true
			out = append(out, "STOPPING=1")
			if n.stopLimit > 0 { // a unit with a shorter stop timeout would kill the pods
				out = append(out, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", (n.stopLimit+stopSlack).Microseconds()))
			}
		}
	}
	n.send(out...)
}

// follow sends the node's status to the service manager after every change until ctx ends, and watchdog pings while the node's
// status socket responds.
func (n *notifier) follow(ctx context.Context, node *Node) {
	n.stopLimit = node.Config().Timeouts.Stop.D()
	beat := make(<-chan time.Time)
	if n.watchdog > 0 {
		const pingsPerTimeout = 2 // sd_watchdog_enabled(3) recommends half of the timeout
		t := time.NewTicker(n.watchdog / pingsPerTimeout)
		defer t.Stop()
		beat = t.C
	}
	news := make(chan *status.Status)
	go func() {
		defer close(news)
		c := status.NewClient(node.rt.NodeSocket())
		defer c.Close()
		for last := (*status.Status)(nil); ctx.Err() == nil; {
			s, err := nextStatus(ctx, node, c, last)
			if err != nil { // the status socket does not respond yet, or no longer
				s = nil
				select {
				case <-ctx.Done():
				case <-time.After(lockPoll):
				}
			} else {
				select {
				case news <- s:
				case <-ctx.Done():
				}
			}
			last = s
		}
	}()
	for {
		select {
		case s, ok := <-news:
			if !ok {
				return
			}
			n.notify(s)
		case <-beat:
			if err := checkResponds(ctx, node, n.watchdog/4); err != nil {
				n.log.WithError(err).Warn("node status not responding; skipping the watchdog ping")
				continue
			}
			n.send("WATCHDOG=1")
		case <-ctx.Done():
			for range news { //nolint:revive // wait until the watching goroutine has ended
			}
			return
		}
	}
}

// checkResponds returns an error unless the node's status socket responds within limit.
func checkResponds(ctx context.Context, n *Node, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	if _, err := c.Status(ctx); err != nil {
		return fmt.Errorf("read node status: %w", err)
	}
	return nil
}
