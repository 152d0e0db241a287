package noderole

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// nodeWatch reports the conditions of the Node object, and restores the Node object if it is deleted. It is ready when the Node
// is.
type nodeWatch struct {
	name    string
	started time.Time // the beginning of this run
	hub     *status.Hub
	log     logrus.FieldLogger
	client  clientFunc
	// restart restarts a unit. It is nil on a worker: deleting the Node object is how an administrator removes a worker, and
	// the cluster does not let the worker create it again.
	restart func(unit string) error
	// patience is how long the Node object may be missing before it is restored.
	patience time.Duration
}

// restoreNodeAfter is the patience of a running node, which itself replaces the Node object only when it starts.
const restoreNodeAfter = 2 * time.Second

// Run watches the Node object until ctx ends.
func (w *nodeWatch) Run(ctx context.Context, ready func()) error {
	c, err := w.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	nodes, ended := make(chan *corev1.Node), make(chan error, 1)
	var watching sync.WaitGroup
	watching.Go(func() {
		ended <- c.WatchNode(ctx, w.name, func(n *corev1.Node) {
			select {
			case nodes <- n:
			case <-ctx.Done():
			}
		})
	})
	defer watching.Wait()
	defer cancel()
	var last *corev1.Node        // as the kubelet of this run reported it
	var missing <-chan time.Time // receives when the Node has been missing for too long
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case n := <-nodes:
			if w.report(ctx, n, w.restart == nil && last != nil) {
				ready()
			}
			missing = nil
			if n.UID != "" && reportedSince(n, w.started) {
				last = n
			}
			if n.UID == "" && last != nil && w.restart != nil {
				missing = time.After(w.patience)
			}
		case <-missing:
			if err := w.restore(ctx, c, last); err != nil {
				w.log.WithError(err).Warn("restore the Node object")
				missing = time.After(w.patience)
			}
		}
	}
}

// report publishes the conditions of n and reports whether it is ready. removable is set if deleting the Node object removes the
// node from its cluster.
func (w *nodeWatch) report(ctx context.Context, n *corev1.Node, removable bool) bool {
	ready, pressure := nodeConditions(n, w.started, removable)
	w.hub.SetCondition(ready)
	if pressure.Type != "" {
		w.hub.SetCondition(pressure)
	}
	if !ready.OK {
		supervisor.Progress(ctx, "%s", ready.Message)
	}
	return ready.OK
}

// restore creates the Node object as it was, and restarts the kubelet, which does not register the Node again by itself and
// would report its status only after some time.
func (w *nodeWatch) restore(ctx context.Context, c *kubeapi.Client, last *corev1.Node) error {
	made, err := c.EnsureNode(ctx, restoredNode(last))
	if err != nil || !made {
		return err
	}
	text := "restored the Node object " + w.name + ", which was deleted"
	w.log.Warn(text)
	w.hub.Publish(status.Event{Component: status.NodeEvents, Reason: text, Level: status.LevelWarning})
	return w.restart(kubelet.Name)
}

// restoredNode returns the object that replaces last. Without the same pod ranges, the control plane would assign others, which
// flannel and the running pods do not use. The taints of the node's lifecycle, and the mark of a drained node, are left out.
func restoredNode(last *corev1.Node) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: last.Name, Labels: maps.Clone(last.Labels), Annotations: maps.Clone(last.Annotations)},
		Spec: corev1.NodeSpec{
			PodCIDR: last.Spec.PodCIDR, PodCIDRs: last.Spec.PodCIDRs,
			Taints: slices.DeleteFunc(slices.Clone(last.Spec.Taints), func(t corev1.Taint) bool {
				return strings.HasPrefix(t.Key, "node.kubernetes.io/")
			}),
		},
		Status: corev1.NodeStatus{Addresses: last.Status.Addresses},
	}
}

// nodeConditions returns the conditions NodeReady and NodePressure of a Node object. The latter has no Type if it is not known.
// started is the beginning of this run. See nodeWatch.report for removable.
func nodeConditions(n *corev1.Node, started time.Time, removable bool) (ready, pressure status.Condition) {
	ready.Type = status.ConditionNodeReady
	if n.UID == "" {
		ready.Reason, ready.Message = "NodeNotFound", "the Node object does not exist"
		if removable {
			ready.Steps = errdefs.Do(errdefs.Stop).Do(errdefs.CreateToken).Note("on the cluster's first node; then start this node with the token")
		}
		return ready, pressure
	}
	ready.OK, ready.Message = kubeapi.NodeReady(n)
	current := reportedSince(n, started)
	switch {
	case ready.OK && current:
		ready.Message = ""
	case ready.OK:
		ready.OK, ready.Reason = false, "Starting"
		ready.Message = "the kubelet has not updated the Node object since the node started"
	default:
		ready.Reason = "NodeNotReady"
	}
	if current {
		pressure = nodePressure(n)
	}
	return ready, pressure
}

// pressures are the conditions of a Node that are true if it lacks a resource.
var pressures = []corev1.NodeConditionType{corev1.NodeDiskPressure, corev1.NodeMemoryPressure, corev1.NodePIDPressure}

// nodePressure returns the condition that the kubelet does not lack a resource. Otherwise it evicts pods and accepts no new ones.
func nodePressure(n *corev1.Node) status.Condition {
	c := status.Condition{Type: status.ConditionNodePressure, OK: true}
	var texts []string
	for _, cond := range n.Status.Conditions {
		if cond.Status == corev1.ConditionTrue && slices.Contains(pressures, cond.Type) {
			if c.OK {
				c.OK, c.Reason = false, string(cond.Type)
			}
			texts = append(texts, fmt.Sprintf("%s: %s", cond.Type, cond.Message))
		}
	}
	c.Message = strings.Join(texts, "; ")
	if !c.OK {
		c.Steps = errdefs.Do(errdefs.Kubectl, "describe", "node", n.Name)
	}
	return c
}

// reportedSince reports whether the kubelet has reported readiness since start, the beginning of this run. The Node
// object keeps its condition while the node is stopped. The API's times are in whole seconds.
func reportedSince(node *corev1.Node, start time.Time) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && !c.LastHeartbeatTime.Time.Before(start.Truncate(time.Second))
	})
}
