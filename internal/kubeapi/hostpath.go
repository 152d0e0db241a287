package kubeapi

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// HostPathPod is a pod with hostPath volumes.
type HostPathPod struct {
	Namespace, Name, UID string
	Paths                []HostPath
}

// HostPath is a hostPath volume. Type is empty or a Kubernetes type (DirectoryOrCreate, Socket, …).
type HostPath struct{ Path, Type string }

// WatchHostPaths calls fn once for each pod of a node that has hostPath volumes and has not ended. The rules of
// WatchServices apply.
func (c workloads) WatchHostPaths(ctx context.Context, node string, fn func(HostPathPod)) error {
	seen := map[string]bool{} // UIDs
	t := tracker[corev1.Pod, *corev1.Pod, HostPathPod]{
		of: func(o *corev1.Pod) (HostPathPod, bool) {
			p := HostPathPod{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID)}
			for _, v := range o.Spec.Volumes {
				if h := v.HostPath; h != nil {
					path := HostPath{Path: h.Path}
					if h.Type != nil {
						path.Type = string(*h.Type)
					}
					p.Paths = append(p.Paths, path)
				}
			}
			return p, len(p.Paths) > 0 && !podEnded(o)
		},
		listed: func(all []HostPathPod) {
			old := seen
			seen = map[string]bool{}
			for _, p := range all {
				if seen[p.UID] = true; !old[p.UID] {
					fn(p)
				}
			}
		},
		set: func(p HostPathPod, gone bool) {
			if gone {
				delete(seen, p.UID)
			} else if !seen[p.UID] {
				seen[p.UID] = true
				fn(p)
			}
		},
	}
	return t.run(ctx, c.conn, podsPath, onNode(node))
}
