package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// RunningPod is a pod of a node that is not ending.
type RunningPod struct {
	Namespace, Name string
	UID             types.UID
	// Ready is the Ready condition of the pod.
	Ready bool
}

// ReadyPods returns the pods of a node whose containers were all ready when their kubelet reported them last. The control plane and
// ResetPods change the pod's Ready condition when the node stops or starts, but not the status of its containers.
func (c workloads) ReadyPods(ctx context.Context, node string) ([]RunningPod, error) {
	var list corev1.PodList
	query := url.Values{"fieldSelector": {onNode(node)}}
	if err := c.do(ctx, request{method: http.MethodGet, path: podsPath, query: query}, &list); err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	var pods []RunningPod
	for i := range list.Items {
		if p, running := runningPodOf(&list.Items[i]); running && containersReady(&list.Items[i]) {
			pods = append(pods, p)
		}
	}
	return pods, nil
}

// WatchRunningPods calls fn with all pods of a node that are not ending, after each change. The rules of WatchServices apply.
func (c workloads) WatchRunningPods(ctx context.Context, node string, fn func([]RunningPod)) error {
	known := map[types.UID]RunningPod{}
	report := func() {
		all := make([]RunningPod, 0, len(known))
		for _, p := range known {
			all = append(all, p)
		}
		fn(all)
	}
	t := tracker[corev1.Pod, *corev1.Pod, RunningPod]{
		of: runningPodOf,
		listed: func(all []RunningPod) {
			clear(known)
			for _, p := range all {
				known[p.UID] = p
			}
			report()
		},
		set: func(p RunningPod, gone bool) {
			delete(known, p.UID)
			if !gone {
				known[p.UID] = p
			}
			report()
		},
	}
	return t.run(ctx, c.conn, podsPath, onNode(node))
}

// runningPodOf converts a pod. running reports whether it is not ending.
func runningPodOf(o *corev1.Pod) (p RunningPod, running bool) {
	p = RunningPod{Namespace: o.Namespace, Name: o.Name, UID: o.UID}
	for _, c := range o.Status.Conditions {
		p.Ready = p.Ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	return p, !podEnded(o) && o.DeletionTimestamp == nil
}

func containersReady(o *corev1.Pod) bool {
	for _, c := range o.Status.ContainerStatuses {
		if !c.Ready {
			return false
		}
	}
	return len(o.Status.ContainerStatuses) > 0
}

// ServicesOf returns the Services that have one of the pods as a ready endpoint.
func (c workloads) ServicesOf(ctx context.Context, pods []RunningPod) ([]ServiceName, error) {
	var list discoveryv1.EndpointSliceList
	query := url.Values{"labelSelector": {slicesOf(nil)}}
	if err := c.do(ctx, request{method: http.MethodGet, path: slicesPath, query: query}, &list); err != nil {
		return nil, fmt.Errorf("list the EndpointSlices: %w", err)
	}
	var uids []types.UID
	for _, p := range pods {
		uids = append(uids, p.UID)
	}
	var services []ServiceName
	for i := range list.Items {
		if hasEndpointOf(&list.Items[i], uids) {
			services = append(services, serviceOfSlice(&list.Items[i]))
		}
	}
	return services, nil
}
