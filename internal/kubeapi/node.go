package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const nodesPath = "/api/v1/nodes"

// WatchNode calls fn with the Node object name immediately and after every change until ctx ends. It returns ctx's error.
// While the object does not exist, fn gets a Node that has only a name: no UID and no conditions. fn is called from one
// goroutine, owns its argument, and blocks the watch while it runs. managedFields are omitted.
func (c nodes) WatchNode(ctx context.Context, name string, fn func(*corev1.Node)) error {
	return c.followNode(ctx, name, fn, nil)
}

// WaitNode waits until cond returns true for the Node object name and returns the object. cond is called only while the
// object exists. If ctx ends, the error contains the last state (class errdefs.ErrTimeout for a deadline).
func (c nodes) WaitNode(ctx context.Context, name string, cond func(*corev1.Node) bool) (*corev1.Node, error) {
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		found *corev1.Node
		last  error
	)
	err := c.followNode(stop, name, func(n *corev1.Node) {
		switch {
		case found != nil:
		case n.UID == "":
			last = errors.New("not registered yet")
		case cond(n):
			found = n
			cancel()
		default:
			_, reason := NodeReady(n)
			last = errors.New(reason)
		}
	}, func(err error) { last = err })
	if found != nil {
		return found, nil
	}
	if ctx.Err() == nil {
		return nil, fmt.Errorf("wait for node %s: %w", name, err)
	}
	return nil, timedOut(ctx, "wait for node "+name, last)
}

func (c nodes) followNode(ctx context.Context, name string, fn func(*corev1.Node), fault func(error)) error {
	absent := func() { fn(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}) }
	f := follower[corev1.Node, *corev1.Node]{
		c: c.conn, path: nodesPath, selector: "metadata.name=" + name,
		replace: func(all []*corev1.Node) {
			if len(all) == 0 {
				absent()
			}
			for _, n := range all {
				fn(n)
			}
		},
		changed: fn,
		deleted: func(*corev1.Node) { absent() },
		fault:   fault,
	}
	return f.run(ctx)
}

// NodeReady reports whether the Node's Ready condition is true, and otherwise the reason in one line.
func NodeReady(n *corev1.Node) (bool, string) {
	for _, cond := range n.Status.Conditions {
		if cond.Type != corev1.NodeReady {
			continue
		}
		text := fmt.Sprintf("Ready is %s", cond.Status)
		if cond.Reason != "" {
			text += " (" + cond.Reason + ")"
		}
		if cond.Message != "" {
			text += ": " + cond.Message
		}
		return cond.Status == corev1.ConditionTrue, text
	}
	return false, "no Ready condition yet"
}

// PatchNodeLabels sets and removes labels of the Node object name in one request and keeps its other labels. A label in both
// set and remove is set. Without changes, it sends no request.
func (c nodes) PatchNodeLabels(ctx context.Context, name string, set map[string]string, remove []string) error {
	return c.patchNode(ctx, name, "labels", set, remove)
}

// PatchNodeAnnotations sets annotations of the Node object name in one request and keeps the others. Without changes, it
// sends no request.
func (c nodes) PatchNodeAnnotations(ctx context.Context, name string, set map[string]string) error {
	return c.patchNode(ctx, name, "annotations", set, nil)
}

// patchNode changes the labels or the annotations of a Node.
func (c nodes) patchNode(ctx context.Context, name, field string, set map[string]string, remove []string) error {
	if len(set)+len(remove) == 0 {
		return nil
	}
	values := make(map[string]any, len(set)+len(remove))
	for _, k := range remove {
		values[k] = nil
	}
	for k, v := range set {
		values[k] = v
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{field: values}})
	if err == nil {
		err = c.do(ctx, request{method: http.MethodPatch, path: nodePath(name), contentType: mimeMergePatch, body: body}, nil)
	}
	if err != nil {
		return fmt.Errorf("set %s of node %s: %w", field, name, err)
	}
	return nil
}

func nodePath(name string) string { return nodesPath + "/" + url.PathEscape(name) }

// Node returns the Node object name, or nil if it does not exist.
func (c nodes) Node(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := read[corev1.Node](ctx, c.conn, nodePath(name))
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", name, err)
	}
	return node, nil
}

// RemoveNode deletes the Node object name if it exists and unfit returns true for it. The pods stay: the control plane
// removes pods of a deleted Node only after some time, and the kubelet registers the Node again before.
func (c nodes) RemoveNode(ctx context.Context, name string, unfit func(*corev1.Node) bool) (removed bool, err error) {
	node, err := c.Node(ctx, name)
	if err != nil || node == nil || !unfit(node) {
		return false, err
	}
	if err := c.DeleteNode(ctx, name); err != nil {
		return false, err
	}
	return true, nil
}

// MarkNodeNotReady sets the Ready condition of the Node object name to Unknown, as the control plane does for a node that
// stopped reporting. It does nothing if the Node does not exist or is not Ready.
//
// It is called when a node starts, while the Node object still has the status of the last run: a kubelet that finds its Node
// Ready skips the fast first reports and waits for the next regular one (kubelet 1.37, fastNodeStatusUpdate).
func (c nodes) MarkNodeNotReady(ctx context.Context, name, reason, message string) error {
	node, err := c.Node(ctx, name)
	if err != nil || node == nil {
		return err
	}
	if ready, _ := NodeReady(node); !ready {
		return nil
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: reason, Message: message,
		LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now(),
	}}}})
	if err != nil {
		return fmt.Errorf("mark node %s as not ready: %w", name, err)
	}
	err = c.do(ctx, request{
		method: http.MethodPatch, path: nodePath(name) + "/status", contentType: mimeStrategicPatch, body: body,
	}, nil)
	if err != nil {
		return fmt.Errorf("mark node %s as not ready: %w", name, err)
	}
	return nil
}
