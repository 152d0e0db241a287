package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/parent"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// WaitReady blocks until the Node object is Ready. progress, if not nil, is called with the first status and with each
// one that differs from the one before.
//
// Errors: the node's own when it ends instead (class ErrComponent or ErrPreflight); of class ErrTimeout when ctx's
// deadline passes, with what was waited for.
func (n *Node) WaitReady(ctx context.Context, progress func(status.Status)) error {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if h := n.current(); h != nil {
		// The end of the parent is seen at once and not when a request fails.
		go func() {
			select {
			case <-h.ended:
				cancel(errEnded)
			case <-ctx.Done():
			}
		}()
	}
	var last *status.Status
	for {
		s, err := n.nextStatus(ctx, c, last)
		if err != nil {
			return n.notReady(ctx, last, err)
		}
		if progress != nil {
			progress(*s)
		}
		if s.State == status.NodeReady || s.State == status.NodeDegraded {
			return nil
		}
		last = s
	}
}

// errEnded: the parent process has ended while somebody waited for the node.
var errEnded = errors.New("the node ended")

// nextStatus waits for a status that differs from last; while there is no socket it waits for that.
func (n *Node) nextStatus(ctx context.Context, c *status.Client, last *status.Status) (*status.Status, error) {
	if last != nil {
		return c.WaitStatus(ctx, last.ResourceVersion)
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		s, err := c.Status(ctx)
		if err == nil || !errors.Is(err, errdefs.ErrNotRunning) {
			return s, err
		}
		if n.current() == nil {
			if h, herr := parent.Holder(n.rt); herr == nil && h.ParentPID == 0 {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// notReady says why a wait for readiness ended otherwise.
func (n *Node) notReady(ctx context.Context, last *status.Status, err error) error {
	if h := n.current(); h != nil {
		select {
		case <-h.ended:
			if h.err != nil {
				return h.err
			}
			return errdefs.Class(errdefs.ErrComponent, errors.New("the node was stopped before it was ready"))
		default:
		}
	}
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return n.timedOut(last)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, errdefs.ErrNotRunning) {
		if r := n.awaitLastExit(ctx); r != nil {
			return r.Err()
		}
	}
	return err
}

// awaitLastExit returns the report of the run that is ending, or nil if it leaves none. The status socket is closed a moment
// before the report is written.
func (n *Node) awaitLastExit(ctx context.Context) *errdefs.Report {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		h, err := parent.Holder(n.rt)
		if r := n.lastExit(); r != nil || err != nil || !h.Locked {
			return r
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// timedOut names what the node was still waiting for.
func (n *Node) timedOut(last *status.Status) error {
	var waits []string
	if last == nil {
		waits = append(waits, "the namespaces are not made yet")
	} else {
		for _, c := range last.Components {
			switch c.State {
			case status.Ready, status.Done:
			case status.Waiting:
				waits = append(waits, fmt.Sprintf("%s: needs %s", c.Name, strings.Join(c.WaitingFor, ", ")))
			default:
				waits = append(waits, fmt.Sprintf("%s: %s %s", c.Name, c.State, c.Reason))
			}
		}
	}
	err := fmt.Errorf("wait for the node %q to be ready: %s", n.Config().Name, strings.Join(waits, "; "))
	return errdefs.WithHintf(errdefs.Class(errdefs.ErrTimeout, err),
		"rootlessnode --name %[1]s status\nrootlessnode --name %[1]s logs kubelet\nrootlessnode --name %[1]s down", n.Config().Name)
}

func (n *Node) current() *helper {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.helper
}

// Wait blocks until the node that this handle started has ended, and returns how: nil after an orderly stop.
func (n *Node) Wait() error {
	h := n.current()
	if h == nil {
		return errdefs.Class(errdefs.ErrNotRunning, fmt.Errorf("wait for the node %q: it was not started here", n.Config().Name))
	}
	<-h.ended
	return h.err
}

// Stop stops the node in order, whoever started it, and returns when nothing of it is left. A node that does not run is
// stopped already. When ctx ends first the node is killed, and the error says so.
func (n *Node) Stop(ctx context.Context) error {
	if err := n.signalParent(syscall.SIGTERM); err != nil {
		return fmt.Errorf("ask the node %q to stop: %w", n.Config().Name, err)
	}
	if err := n.waitGone(ctx); err == nil {
		return nil
	}
	return n.kill(context.Cause(ctx))
}

// kill ends a node that does not stop: the parent, and with it everything inside; the guard cleans up.
func (n *Node) kill(cause error) error {
	if err := n.signalParent(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the node %q: %w", n.Config().Name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	if err := n.waitGone(ctx); err != nil {
		return fmt.Errorf("kill the node %q: something of it is left: %w", n.Config().Name, err)
	}
	return errdefs.Class(errdefs.ErrTimeout, fmt.Errorf("stop the node %q: %w, it was killed", n.Config().Name, cause))
}

// signalParent signals the node's parent, if there is one. It asks for the holder of the lock again once it has a handle
// (pidfd) of the process, because the pid may have been reused before.
func (n *Node) signalParent(sig syscall.Signal) error {
	h, err := parent.Holder(n.rt)
	if err != nil || h.ParentPID == 0 {
		return err
	}
	p, err := os.FindProcess(h.ParentPID)
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }() // it has nothing to report
	again, err := parent.Holder(n.rt)
	if err != nil || again.ParentPID != h.ParentPID {
		return err
	}
	if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// killLimit is how long the end of a killed node may take.
const killLimit = 30 * time.Second

// WaitCleaned waits until nothing is left of a node whose parent has ended, however that ended: its guard removes the rest. A
// node whose parent lives is left alone. A service manager that kills what a service leaves needs it.
func (n *Node) WaitCleaned(ctx context.Context) error {
	if err := n.waitHolder(ctx, func(h parent.LockHolder) bool { return !h.Locked || h.ParentPID > 0 }); err != nil {
		return errdefs.Class(errdefs.ErrTimeout, fmt.Errorf("wait for the guard of the node %q to clean up: %w", n.Config().Name, err))
	}
	return nil
}

// waitGone waits until nobody holds the lock.
func (n *Node) waitGone(ctx context.Context) error {
	if err := n.waitHolder(ctx, func(h parent.LockHolder) bool { return !h.Locked }); err != nil {
		return err
	}
	if h := n.current(); h != nil {
		<-h.ended
	}
	return nil
}

// waitHolder waits for a state of the lock.
func (n *Node) waitHolder(ctx context.Context, is func(parent.LockHolder) bool) error {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		h, err := parent.Holder(n.rt)
		if err != nil {
			return err
		}
		if is(h) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
