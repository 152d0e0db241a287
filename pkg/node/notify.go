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

// notifier tells the service manager how the node fares (sd_notify(3)). nil: nobody asked.
type notifier struct {
	socket string
	// watchdog is how often the manager wants to hear of us; 0: not at all.
	watchdog time.Duration
	// stopLimit is how long the node may take to stop; 0 if it is not known.
	stopLimit time.Duration
	log       logrus.FieldLogger
	ready     bool
	stopping  bool
}

// stopSlack is added to stopLimit for what follows the stop of the node: the guard.
const stopSlack = 15 * time.Second

// notifyLimit: a manager that does not read must not keep the node from stopping.
const notifyLimit = time.Second

// takeNotifier reads what the service manager has put into the environment, and takes it out: the components inside would
// speak to the manager too.
func takeNotifier(log logrus.FieldLogger) *notifier {
	socket := os.Getenv("NOTIFY_SOCKET")
	_ = os.Unsetenv("NOTIFY_SOCKET") // it fails for names that cannot be
	watchdog, err := daemon.SdWatchdogEnabled(true)
	if err != nil {
		log.WithError(err).Warn("the service manager's watchdog is not answered")
	}
	if socket == "" {
		return nil
	}
	return &notifier{socket: socket, watchdog: watchdog, log: log}
}

// send writes one datagram of assignments. The library's daemon.SdNotify would wait for a manager that does not read.
func (n *notifier) send(assignments ...string) {
	c, err := net.Dial("unixgram", n.socket)
	if err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(notifyLimit)) // a socket takes deadlines
		_, err = c.Write([]byte(strings.Join(assignments, "\n")))
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		n.log.WithError(err).Warn("tell the service manager")
	}
}

// tell passes a status on.
func (n *notifier) tell(s *status.Status) {
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
			if n.stopLimit > 0 { // a unit that was installed with other limits would kill the pods
				out = append(out, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", (n.stopLimit+stopSlack).Microseconds()))
			}
		}
	}
	n.send(out...)
}

// follow passes on what the node says of itself until ctx ends. The watchdog is answered while the node answers.
func (n *notifier) follow(ctx context.Context, node *Node) {
	n.stopLimit = node.Config().Timeouts.Stop.D()
	beat := make(<-chan time.Time)
	if n.watchdog > 0 {
		const twice = 2 // sd_watchdog_enabled(3) advises half the time
		t := time.NewTicker(n.watchdog / twice)
		defer t.Stop()
		beat = t.C
	}
	news := make(chan *status.Status)
	go func() {
		defer close(news)
		c := status.NewClient(node.rt.NodeSocket())
		defer c.Close()
		for last := (*status.Status)(nil); ctx.Err() == nil; {
			s, err := node.nextStatus(ctx, c, last)
			if err != nil { // it does not answer yet, or not any more
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
			n.tell(s)
		case <-beat:
			if err := node.answers(ctx, n.watchdog/4); err != nil {
				n.log.WithError(err).Warn("the node does not answer, and so does not its watchdog")
				continue
			}
			n.send("WATCHDOG=1")
		case <-ctx.Done():
			for range news { //nolint:revive // until its watcher has ended
			}
			return
		}
	}
}

// answers tells whether the node's own socket does.
func (n *Node) answers(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	if _, err := c.Status(ctx); err != nil {
		return fmt.Errorf("ask the node: %w", err)
	}
	return nil
}
