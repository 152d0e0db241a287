package node

import (
	"context"
	"errors"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/parent"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// Status returns the current status. The State of a node that is not running is status.NodeStopped, or status.NodeFailed with the
// reason if the last run ended with an error. If the node role does not respond within some seconds, or before the deadline of ctx, the
// State is status.NodeDegraded with the reason, and the status has no details.
func (n *Node) Status(ctx context.Context) (*status.Status, error) {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	s, err := c.Status(ctx)
	switch {
	case err == nil:
		return s, nil
	case errors.Is(err, errdefs.ErrNotRunning):
		state, reason := withoutSocket(n, time.Now())
		return offlineStatus(n, state, reason)
	case errors.Is(err, context.DeadlineExceeded):
		return offlineStatus(n, status.NodeDegraded, errdefs.Errorf("the node role does not respond on %s", n.rt.NodeSocket()).
			Do(errdefs.ShowLogs, "node").Do(errdefs.Stop))
	}
	return nil, err
}

// statusLimit is the time within which the node role must respond to a status request.
const statusLimit = 5 * time.Second

// startLimit is the time after the start of the parent within which the node role usually serves its status socket.
const startLimit = time.Minute

// withoutSocket returns the state and the reason of a node whose parent is running, but which has no status socket: it is starting, or the
// socket was removed, for example by a program that deletes old files.
func withoutSocket(n *Node, now time.Time) (status.State, error) {
	var h layout.HandoverInfo
	if err := layout.ReadJSON(n.rt.Handover(), &h); err != nil || now.Sub(h.StartedAt) < startLimit {
		return status.NodeStarting, errdefs.Errorf("creating the namespaces")
	}
	return status.NodeDegraded, errdefs.Errorf("the node was started at %s, but its status socket %s does not exist",
		h.StartedAt.Format(time.DateTime), n.rt.NodeSocket()).Hint("# stop the node and start it again:").Do(errdefs.Stop).Do(errdefs.Start)
}

// offlineStatus returns the status of a node whose status socket does not respond. state and reason are those of a node whose parent is
// running.
func offlineStatus(n *Node, state status.State, reason error) (*status.Status, error) {
	h, err := parent.Holder(n.rt, n.data)
	if err != nil {
		return nil, err
	}
	s := &status.Status{
		Name: n.Config().Name, NodeName: n.Config().NodeName, Version: Version, State: status.NodeStopped,
		DataDir: n.data.Dir, RuntimeDir: n.rt.Dir, ParentPID: h.ParentPID,
	}
	switch {
	case h.RuntimeLost:
		reason := runtimeLost(n)
		s.State, s.Reason, s.Failure = status.NodeDegraded, reason.Error(), errdefs.ReportOf(reason)
	case h.ParentPID > 0 && exists(n.rt.Removal()):
		s.State, s.Reason = status.NodeStopping, "its data is being deleted"
	case h.ParentPID > 0:
		s.State, s.Reason = state, reason.Error()
		if state == status.NodeDegraded {
			s.Failure = errdefs.ReportOf(reason)
		}
	case h.Locked:
		s.State, s.Reason = status.NodeStopping, "cleaning up after the last run"
	default:
		if r := lastExit(n); r != nil {
			s.State, s.Reason, s.Failure = status.NodeFailed, r.Message, r
		}
	}
	return s, nil
}

// runtimeLost returns the error for a running node whose runtime dir was removed, for example by systemd-logind at the end of the last
// session of an account without linger. Programs cannot connect to the node any more.
func runtimeLost(n *Node) error {
	return errdefs.Errorf("the runtime dir %s was removed while the node is running, so that its sockets cannot be reached", n.rt.Dir).
		Hint("# stop the node and start it again:").Do(errdefs.Stop).Do(errdefs.Start)
}

// explain replaces an error of class errdefs.ErrNotRunning if the node is running and only its runtime dir was removed.
func explain(n *Node, err error) error {
	if !errors.Is(err, errdefs.ErrNotRunning) {
		return err
	}
	if h, look := parent.Holder(n.rt, n.data); look == nil && h.RuntimeLost {
		return runtimeLost(n)
	}
	return err
}

// lastExit returns the error with which the last run ended, or nil if it ended without an error.
func lastExit(n *Node) *errdefs.Report {
	var r errdefs.Report
	if layout.ReadJSON(n.data.LastExit(), &r) != nil {
		return nil
	}
	return &r
}
