package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// resetConcurrency is how many pods are reset at once.
	resetConcurrency = 8
	// endpointController is the manager of the slices of Services that have a selector.
	endpointController = discoveryv1.LabelManagedBy + "=endpointslice-controller.k8s.io"
)

// ResetPods records in the status of a node's pods that they are not ready and have no addresses, and returns the UIDs of the
// pods that had any. It is called when the node starts, before its kubelet: the pods' addresses ended with the last run, and
// an address may belong to another pod of this run.
func (c nodes) ResetPods(ctx context.Context, node, reason, message string) ([]types.UID, error) {
	var list corev1.PodList
	query := url.Values{"fieldSelector": {onNode(node)}}
	if err := c.do(ctx, request{method: http.MethodGet, path: podsPath, query: query}, &list); err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	var reset []types.UID
	var g errgroup.Group
	g.SetLimit(resetConcurrency)
	for i := range list.Items {
		o := &list.Items[i]
		if podEnded(o) || o.Status.PodIP == "" && len(o.Status.PodIPs) == 0 {
			continue
		}
		reset = append(reset, o.UID)
		g.Go(func() error { return c.resetPod(ctx, o, reason, message) })
	}
	return reset, g.Wait()
}

func (c nodes) resetPod(ctx context.Context, o *corev1.Pod, reason, message string) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": o.UID},
		"status": map[string]any{
			"podIP": nil, "podIPs": nil, // null removes them
			"conditions": []corev1.PodCondition{{
				Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
			}},
		},
	})
	if err != nil {
		return fmt.Errorf("reset the status of pod %s/%s: %w", o.Namespace, o.Name, err)
	}
	path := namespacesPath + "/" + url.PathEscape(o.Namespace) + "/pods/" + url.PathEscape(o.Name) + "/status"
	err = c.do(ctx, request{method: http.MethodPatch, path: path, contentType: mimeStrategicPatch, body: body}, nil)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // deleted, or replaced by a pod of the same name
		return fmt.Errorf("reset the status of pod %s/%s: %w", o.Namespace, o.Name, err)
	}
	return nil
}

// RemoveEndpoints removes the given pods from all EndpointSlices, as the control plane does for pods without addresses. It is
// for the node of the control plane, on which the controller of EndpointSlices starts later.
func (c nodes) RemoveEndpoints(ctx context.Context, pods []types.UID) error {
	var list discoveryv1.EndpointSliceList
	query := url.Values{"labelSelector": {endpointController}}
	if err := c.do(ctx, request{method: http.MethodGet, path: slicesPath, query: query}, &list); err != nil {
		return fmt.Errorf("list the EndpointSlices: %w", err)
	}
	for i := range list.Items {
		o := &list.Items[i]
		if !hasEndpointOf(o, pods) {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(o.Endpoints), func(e discoveryv1.Endpoint) bool { return isEndpointOf(e, pods) })
		body, err := json.Marshal(map[string]any{
			"metadata":  map[string]any{"resourceVersion": o.ResourceVersion},
			"endpoints": append([]discoveryv1.Endpoint{}, left...),
		})
		if err != nil {
			return fmt.Errorf("update the EndpointSlice %s/%s: %w", o.Namespace, o.Name, err)
		}
		path := "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(o.Namespace) + "/endpointslices/" + url.PathEscape(o.Name)
		err = c.do(ctx, request{method: http.MethodPatch, path: path, contentType: mimeMergePatch, body: body}, nil)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("update the EndpointSlice %s/%s: %w", o.Namespace, o.Name, err)
		}
	}
	return nil
}

// WaitEndpointsRemoved waits until the control plane has removed the given pods from all EndpointSlices, or until the limit,
// which is not an error. It reports whether they are removed.
func (c nodes) WaitEndpointsRemoved(ctx context.Context, pods []types.UID, limit time.Duration) (removed bool, err error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stale := map[types.NamespacedName]bool{}
	see := func(o *discoveryv1.EndpointSlice) {
		delete(stale, nameOf(o))
		if hasEndpointOf(o, pods) {
			stale[nameOf(o)] = true
		}
	}
	check := func() {
		if len(stale) == 0 {
			removed = true
			cancel()
		}
	}
	f := follower[discoveryv1.EndpointSlice, *discoveryv1.EndpointSlice]{
		c: c.conn, path: slicesPath, labels: endpointController,
		replace: func(all []*discoveryv1.EndpointSlice) {
			clear(stale)
			for _, o := range all {
				see(o)
			}
			check()
		},
		changed: func(o *discoveryv1.EndpointSlice) { see(o); check() },
		deleted: func(o *discoveryv1.EndpointSlice) { delete(stale, nameOf(o)); check() },
	}
	_ = f.run(limited) // ends with limited
	return removed, ctx.Err()
}

func hasEndpointOf(o *discoveryv1.EndpointSlice, pods []types.UID) bool {
	return slices.ContainsFunc(o.Endpoints, func(e discoveryv1.Endpoint) bool { return isEndpointOf(e, pods) })
}

func isEndpointOf(e discoveryv1.Endpoint, pods []types.UID) bool {
	return e.TargetRef != nil && slices.Contains(pods, e.TargetRef.UID)
}
