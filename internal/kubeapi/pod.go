package kubeapi

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const podsPath = "/api/v1/pods"

// Pod contains the fields of a Pod that determine its ports on the host. Slices and maps are shared with the watch's copy:
// do not change them.
type Pod struct {
	Namespace, Name, UID string
	HostNetwork          bool
	IPs                  []string
	Ports                []PodPort
	// Annotations holds those with AnnotationPrefix; nil if there are none.
	Annotations map[string]string
	// Created is the creation timestamp; zero if it is not set.
	Created time.Time
}

// PodPort is one port that a container of the pod declares.
type PodPort struct {
	Name, Protocol          string
	ContainerPort, HostPort int
	HostIP                  string
}

// PodEvent is one step of WatchPods.
type PodEvent struct {
	// Listed means that Pods is the complete list; other known pods are gone.
	Listed bool
	Pods   []Pod
	// Gone means that Pod, which has only a namespace and a name, was deleted, has ended, or has no ports any more.
	// Otherwise Pod is new or changed.
	Gone bool
	Pod  Pod
}

// WatchPods calls fn for the pods of a node that declare ports and have not ended. The rules of WatchServices apply.
func (c workloads) WatchPods(ctx context.Context, node string, fn func(PodEvent)) error {
	t := tracker[corev1.Pod, *corev1.Pod, Pod]{
		of:     podOf,
		listed: func(all []Pod) { fn(PodEvent{Listed: true, Pods: all}) },
		set:    func(p Pod, gone bool) { fn(PodEvent{Gone: gone, Pod: p}) },
	}
	return t.run(ctx, c.conn, podsPath, onNode(node))
}

// onNode is the field selector for the pods of a node.
func onNode(node string) string { return "spec.nodeName=" + node }

// podOf converts a pod. relevant reports whether the pod can have ports on the host.
func podOf(o *corev1.Pod) (p Pod, relevant bool) {
	p = Pod{
		Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), HostNetwork: o.Spec.HostNetwork,
		Annotations: ownAnnotations(o.Annotations), Created: o.CreationTimestamp.Time,
	}
	for _, ip := range o.Status.PodIPs {
		p.IPs = append(p.IPs, ip.IP)
	}
	for _, c := range slices.Concat(o.Spec.Containers, sidecars(o)) {
		for _, q := range c.Ports {
			p.Ports = append(p.Ports, PodPort{q.Name, string(q.Protocol), int(q.ContainerPort), int(q.HostPort), q.HostIP})
			relevant = relevant || q.HostPort != 0 || o.Spec.HostNetwork
		}
	}
	return p, relevant && !podEnded(o)
}

// sidecars returns the restartable init containers, which live as long as the pod.
func sidecars(o *corev1.Pod) (out []corev1.Container) {
	for _, c := range o.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	return out
}

func podEnded(o *corev1.Pod) bool {
	return o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed
}
