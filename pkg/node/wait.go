package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/parent"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// WaitReady blocks until the node can be used: WaitFor with status.MilestoneUsable.
func (n *Node) WaitReady(ctx context.Context, progress func(status.Status)) error {
	return n.WaitFor(ctx, status.MilestoneUsable, progress)
}

// WaitFor blocks until the node has reached a milestone. progress, if not nil, is called with the first status and after every change.
//
// Errors: the error of the node if it ends first (of class errdefs.ErrComponent or errdefs.ErrPreflight); of class errdefs.ErrTimeout
// with the components that are not ready and the conditions that are not true if the deadline of ctx passes; errdefs.ErrNotRunning if
// the node is not running.
func (n *Node) WaitFor(ctx context.Context, m status.Milestone, progress func(status.Status)) error {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	following, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if h := currentHelper(n); h != nil {
		// Notice the end of the parent immediately, not when the next request fails.
		go func() {
			select {
			case <-h.ended:
				cancel(errEnded)
			case <-following.Done():
			}
		}()
	}
	var last *status.Status
	for {
		s, err := nextStatus(following, n, c, last)
		if errors.Is(err, errdefs.ErrTimeout) {
			continue // the limit of this wait is that of ctx
		}
		if err != nil {
			if errors.Is(context.Cause(following), errEnded) {
				err = errEnded
			}
			return notReady(ctx, n, m, last, err)
		}
		if progress != nil {
			progress(*s)
		}
		if s.Reached(m) {
			return nil
		}
		last = s
	}
}

// errEnded is the cancel cause when the parent process ends while WaitReady waits.
var errEnded = errors.New("the node ended")

// nextStatus waits for a status that differs from last. While there is no status socket, it waits for the socket.
func nextStatus(ctx context.Context, n *Node, c *status.Client, last *status.Status) (*status.Status, error) {
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
		if currentHelper(n) == nil {
			if h, herr := parent.Holder(n.rt, n.data); herr == nil && h.ParentPID == 0 {
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

// notReady returns the error for a wait that ended before the node was ready. err is the error of the last request.
func notReady(ctx context.Context, n *Node, m status.Milestone, last *status.Status, err error) error {
	if errors.Is(err, errEnded) || errors.Is(err, errdefs.ErrNotRunning) {
		// The status socket is closed before the parent has the node's error.
		if ended := awaitExit(ctx, n); ended != nil {
			return ended
		}
	}
	switch {
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return timedOut(n, m, last)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// awaitExit waits until the run has ended and its guard has cleaned up, and returns the error of the run. It returns nil if ctx ends
// first, or if the node was not started by this handle and has left no error.
func awaitExit(ctx context.Context, n *Node) error {
	h := currentHelper(n)
	if h != nil {
		select {
		case <-h.ended:
		case <-ctx.Done():
			return nil
		}
	}
	cleaned := func(l parent.LockHolder) bool { return !l.Locked || h != nil && l.ParentPID > 0 } // another program started the node
	if err := waitHolder(ctx, n, cleaned); err != nil && h == nil {
		return nil
	}
	if h != nil && h.err != nil {
		return h.err
	}
	if r := lastExit(n); r != nil {
		return r.Err()
	}
	if h == nil {
		return nil
	}
	return errdefs.Component("the node was stopped before it was ready")
}

// timedOut returns an error that names what keeps the node from the milestone, and the fix.
func timedOut(n *Node, m status.Milestone, last *status.Status) error {
	waits, hint := []string{"the namespaces are not created yet"}, errdefs.Hint(nil)
	if last != nil {
		waits, hint = last.Missing(m)
	}
	hint = hint.Do(errdefs.ShowStatus)
	if len(hint) == 1 {
		hint = hint.Do(errdefs.ShowLogs, kubelet.Name)
	}
	return errdefs.Timeout("wait for node %q to become ready: %s", n.Config().Name, strings.Join(waits, "; ")).With(hint.Do(errdefs.Stop))
}

func currentHelper(n *Node) *helper {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.helper
}

// Wait blocks until the node that this handle started has ended. It returns nil after an orderly stop, otherwise the error of the
// node.
//
// Errors: of class errdefs.ErrNotRunning if this handle has not started the node.
func (n *Node) Wait() error {
	h := currentHelper(n)
	if h == nil {
		return errdefs.NotRunning("wait for node %q: not started by this program", n.Config().Name)
	}
	<-h.ended
	return h.err
}

// Stop stops the node, also if another program started it, and returns when all its processes have ended and its guard has cleaned
// up. It also removes what a node has left that was killed together with its guard. Stopping a stopped node succeeds.
//
// Errors: of class errdefs.ErrTimeout if ctx ends first; the node is killed then.
func (n *Node) Stop(ctx context.Context) error {
	name := n.Config().Name
	// SIGCONT resumes a process of the node that was stopped with SIGSTOP: the parent and the child forward it.
	if err := signalParent(n, syscall.SIGTERM, syscall.SIGCONT); err != nil {
		return fmt.Errorf("signal node %q to stop: %w", name, err)
	}
	late := waitHolder(ctx, n, func(h parent.LockHolder) bool { return h.ParentPID == 0 })
	if late != nil {
		if err := signalParent(n, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill node %q: %w", name, err)
		}
	}
	if err := awaitCleanup(n); err != nil {
		return fmt.Errorf("stop node %q: not completely stopped: %w", name, err)
	}
	if errors.Is(late, context.DeadlineExceeded) {
		late = errors.New("not stopped within the time limit")
	}
	if late != nil {
		_ = os.Remove(n.data.LastExit()) // the guard's report that the parent was killed, as the caller requested
		return errdefs.Timeout("stop node %q: %w; the node was killed", name, late)
	}
	return nil
}

// awaitCleanup waits until the guard has cleaned up after a parent that has ended. If the guard does not respond or was killed,
// awaitCleanup cleans up.
func awaitCleanup(n *Node) error {
	free := func(h parent.LockHolder) bool { return !h.Locked }
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	if waitHolder(ctx, n, free) != nil {
		killed, cancel := context.WithTimeout(context.Background(), killLimit)
		defer cancel()
		if err := errors.Join(parent.KillHolders(n.rt, n.data), waitHolder(killed, n, free)); err != nil {
			return err
		}
	}
	if err := parent.RemoveLeftovers(n.rt); err != nil && !errors.Is(err, errdefs.ErrAlreadyRunning) { // started again meanwhile
		return err
	}
	if h := currentHelper(n); h != nil {
		<-h.ended
	}
	return nil
}

// signalParent sends signals to the node's parent, if there is one. It reads the holder of the lock again after it has opened the process
// (as a pidfd), because the pid may have been reused before that.
func signalParent(n *Node, signals ...syscall.Signal) error {
	h, err := parent.Holder(n.rt, n.data)
	if err != nil || h.ParentPID == 0 {
		return err
	}
	p, err := proc.Open(h.ParentPID)
	if proc.Ended(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	again, err := parent.Holder(n.rt, n.data)
	if err != nil || again.ParentPID != h.ParentPID {
		return err
	}
	for _, s := range signals {
		err = errors.Join(err, p.Signal(s))
	}
	return err
}

// killLimit is the time limit for the cleanup after the parent has ended.
const killLimit = 30 * time.Second

// WaitCleaned waits until the guard has cleaned up after a node whose parent has ended. It returns immediately if the parent is
// running. A systemd unit needs it after the main process has ended, because the service manager would kill the guard.
//
// Errors: of class errdefs.ErrTimeout if ctx ends first.
func (n *Node) WaitCleaned(ctx context.Context) error {
	if err := waitHolder(ctx, n, func(h parent.LockHolder) bool { return !h.Locked || h.ParentPID > 0 }); err != nil {
		return errdefs.Timeout("wait for the guard of node %q to clean up: %w", n.Config().Name, err)
	}
	return nil
}

// waitHolder polls the lock until is returns true for its state.
func waitHolder(ctx context.Context, n *Node, is func(parent.LockHolder) bool) error {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		h, err := parent.Holder(n.rt, n.data)
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
