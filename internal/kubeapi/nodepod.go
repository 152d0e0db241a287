package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// NodePod contains the fields of a Pod that determine the order in which the pods of a node are stopped.
type NodePod struct {
	Namespace, Name string
	// UID is the UID that the container runtime knows. For the mirror of a static pod it is the UID of the static pod.
	UID string
	// Static reports whether the Pod object mirrors a static pod.
	Static        bool
	Priority      int32
	RestartPolicy string
	// GraceSeconds is the termination grace period of the pod's spec.
	GraceSeconds int64
	// Containers are the main containers. Sidecars are the restartable init containers, in their order.
	Containers, Sidecars []string
	// DeletionGraceSeconds is set while the pod is being deleted.
	DeletionGraceSeconds *int64
}

// NodePods returns the pods of a node that have not ended.
func (c nodes) NodePods(ctx context.Context, node string) ([]NodePod, error) {
	var list corev1.PodList
	query := url.Values{"fieldSelector": {onNode(node)}}
	if err := c.do(ctx, request{method: http.MethodGet, path: podsPath, query: query}, &list); err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	var pods []NodePod
	for i := range list.Items {
		if o := &list.Items[i]; !podEnded(o) {
			pods = append(pods, nodePodOf(o))
		}
	}
	return pods, nil
}

func nodePodOf(o *corev1.Pod) NodePod {
	p := NodePod{
		Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), RestartPolicy: string(o.Spec.RestartPolicy),
		Containers: containerNames(o.Spec.Containers), Sidecars: containerNames(sidecars(o)),
	}
	if o.Spec.Priority != nil {
		p.Priority = *o.Spec.Priority
	}
	if o.Spec.TerminationGracePeriodSeconds != nil {
		p.GraceSeconds = *o.Spec.TerminationGracePeriodSeconds
	}
	if mirrored := o.Annotations[corev1.MirrorPodAnnotationKey]; mirrored != "" {
		p.UID, p.Static = mirrored, true
	}
	if o.DeletionTimestamp != nil {
		p.DeletionGraceSeconds = o.DeletionGracePeriodSeconds
	}
	return p
}

func containerNames(all []corev1.Container) (names []string) {
	for _, c := range all {
		names = append(names, c.Name)
	}
	return names
}

// MarkContainersWaiting sets containers to waiting in the status of a pod. Normally only the kubelet of the pod's node does
// this, so the kubelet must not be running. A pod that was replaced by another one of the same name is not changed.
func (c nodes) MarkContainersWaiting(ctx context.Context, p NodePod, containers []string, reason, message string) error {
	type state struct {
		Running *struct{}                    `json:"running"` // null removes it
		Waiting corev1.ContainerStateWaiting `json:"waiting"`
	}
	type containerStatus struct {
		Name  string `json:"name"`
		Ready bool   `json:"ready"`
		State state  `json:"state"`
	}
	var patch struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
		Status struct {
			Containers     []containerStatus `json:"containerStatuses,omitempty"`
			InitContainers []containerStatus `json:"initContainerStatuses,omitempty"`
		} `json:"status"`
	}
	patch.Metadata.UID = p.UID
	for _, name := range containers {
		s := containerStatus{Name: name, State: state{Waiting: corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
		if slices.Contains(p.Sidecars, name) {
			patch.Status.InitContainers = append(patch.Status.InitContainers, s)
		} else {
			patch.Status.Containers = append(patch.Status.Containers, s)
		}
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	path := namespacesPath + "/" + url.PathEscape(p.Namespace) + "/pods/" + url.PathEscape(p.Name) + "/status"
	err = c.do(ctx, request{method: http.MethodPatch, path: path, contentType: mimeStrategicPatch, body: body}, nil)
	if err != nil {
		return fmt.Errorf("mark containers of pod %s/%s as waiting: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// RemovePods deletes the pods of a node that does not exist any more, without a grace period, and returns their number.
func (c nodes) RemovePods(ctx context.Context, node string) (int, error) {
	pods, err := c.NodePods(ctx, node)
	if err != nil {
		return 0, err
	}
	for _, p := range pods {
		path := namespacesPath + "/" + url.PathEscape(p.Namespace) + "/pods/" + url.PathEscape(p.Name)
		err := c.do(ctx, request{method: http.MethodDelete, path: path, query: url.Values{"gracePeriodSeconds": {"0"}}}, nil)
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("delete pod %s/%s of the former node %s: %w", p.Namespace, p.Name, node, err)
		}
	}
	return len(pods), nil
}
