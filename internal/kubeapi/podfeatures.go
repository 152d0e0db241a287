package kubeapi

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// PodFeatures are the features of a pod that a node in a user namespace cannot provide as usual.
type PodFeatures struct {
	Namespace, Name, UID string
	// Paths are its hostPath volumes.
	Paths []HostPath
	// OwnUsers is set if the pod requests a user namespace of its own (hostUsers: false).
	OwnUsers bool
}

// HostPath is a hostPath volume. Type is empty or a Kubernetes type (DirectoryOrCreate, Socket, …).
type HostPath struct{ Path, Type string }

// WatchPodFeatures calls fn once for each pod of a node that has such features and has not ended. The rules of
// WatchServices apply.
func (c workloads) WatchPodFeatures(ctx context.Context, node string, fn func(PodFeatures)) error {
	seen := map[string]bool{} // UIDs
	t := tracker[corev1.Pod, *corev1.Pod, PodFeatures]{
		of: func(o *corev1.Pod) (PodFeatures, bool) {
			p := PodFeatures{
				Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), OwnUsers: o.Spec.HostUsers != nil && !*o.Spec.HostUsers,
			}
			for _, v := range o.Spec.Volumes {
				if h := v.HostPath; h != nil {
					path := HostPath{Path: h.Path}
					if h.Type != nil {
						path.Type = string(*h.Type)
					}
					p.Paths = append(p.Paths, path)
				}
			}
			return p, (p.OwnUsers || len(p.Paths) > 0) && !podEnded(o)
		},
		listed: func(all []PodFeatures) {
			old := seen
			seen = map[string]bool{}
			for _, p := range all {
				if seen[p.UID] = true; !old[p.UID] {
					fn(p)
				}
			}
		},
		set: func(p PodFeatures, gone bool) {
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
