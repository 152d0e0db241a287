package kubeapi

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// WatchLabelledPods calls fn with all pods of a namespace that have the labels of the selector, immediately and after every
// change, until ctx ends. It returns ctx's error. fn is called from one goroutine and must not change the pods.
func (c workloads) WatchLabelledPods(ctx context.Context, namespace, selector string, fn func([]*corev1.Pod)) error {
	known := map[types.NamespacedName]*corev1.Pod{}
	report := func() { fn(slices.Collect(maps.Values(known))) }
	set := func(p *corev1.Pod) {
		known[nameOf(p)] = p
		report()
	}
	f := follower[corev1.Pod, *corev1.Pod]{
		c: c.conn, path: namespacesPath + "/" + url.PathEscape(namespace) + "/pods", labels: selector,
		replace: func(all []*corev1.Pod) {
			clear(known)
			for _, p := range all {
				known[nameOf(p)] = p
			}
			report()
		},
		changed: set,
		deleted: func(p *corev1.Pod) {
			delete(known, nameOf(p))
			report()
		},
	}
	return f.run(ctx)
}

// LabelledPods returns all pods of a namespace that have the labels of the selector.
func (c workloads) LabelledPods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	var list corev1.PodList
	path := namespacesPath + "/" + url.PathEscape(namespace) + "/pods"
	if err := c.do(ctx, request{method: http.MethodGet, path: path, query: url.Values{"labelSelector": {selector}}}, &list); err != nil {
		return nil, fmt.Errorf("list the pods %s in namespace %s: %w", selector, namespace, err)
	}
	return list.Items, nil
}

// DeletePod deletes a pod. It succeeds if the pod does not exist.
func (c workloads) DeletePod(ctx context.Context, namespace, name string) error {
	path := namespacesPath + "/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name)
	err := c.do(ctx, request{method: http.MethodDelete, path: path}, nil)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s/%s: %w", namespace, name, err)
	}
	return nil
}

// Service returns a Service, or nil if it does not exist.
func (c workloads) Service(ctx context.Context, namespace, name string) (*corev1.Service, error) {
	s, err := read[corev1.Service](ctx, c.conn, namespacesPath+"/"+url.PathEscape(namespace)+"/services/"+url.PathEscape(name))
	if err != nil {
		return nil, fmt.Errorf("read Service %s/%s: %w", namespace, name, err)
	}
	return s, nil
}

// ServiceAt returns the Service with a cluster IP, or nil if there is none. API servers before Kubernetes 1.37 return an
// error.
func (c workloads) ServiceAt(ctx context.Context, clusterIP string) (*corev1.Service, error) {
	var list corev1.ServiceList
	query := url.Values{"fieldSelector": {"spec.clusterIP=" + clusterIP}}
	if err := c.do(ctx, request{method: http.MethodGet, path: servicesPath, query: query}, &list); err != nil {
		return nil, fmt.Errorf("find the Service at %s: %w", clusterIP, err)
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	return &list.Items[0], nil
}

// Deployment has the fields of a Deployment that explain why it has no pods.
type Deployment struct {
	Spec struct {
		Replicas int `json:"replicas"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type    string                 `json:"type"`
			Status  corev1.ConditionStatus `json:"status"`
			Message string                 `json:"message"`
		} `json:"conditions"`
	} `json:"status"`
}

// Failure returns the reason why the Deployment cannot create pods, or "".
func (d *Deployment) Failure() string {
	for _, c := range d.Status.Conditions {
		if c.Type == "ReplicaFailure" && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// Deployment returns a Deployment, or nil if it does not exist.
func (c workloads) Deployment(ctx context.Context, namespace, name string) (*Deployment, error) {
	d, err := read[Deployment](ctx, c.conn, "/apis/apps/v1/namespaces/"+url.PathEscape(namespace)+"/deployments/"+url.PathEscape(name))
	if err != nil {
		return nil, fmt.Errorf("read Deployment %s/%s: %w", namespace, name, err)
	}
	return d, nil
}
