package kubeapi

import "context"

// HostPathPod is a pod with hostPath volumes.
type HostPathPod struct {
	Namespace, Name, UID string
	Paths                []HostPath
}

// HostPath is a hostPath volume. Type is empty or a Kubernetes type (DirectoryOrCreate, Socket, …).
type HostPath struct{ Path, Type string }

// WatchHostPaths calls fn once for each pod of a node that has hostPath volumes and has not ended. The rules of
// WatchServices apply.
func (c *Client) WatchHostPaths(ctx context.Context, node string, fn func(HostPathPod)) error {
	known := map[key]string{} // UIDs
	set := func(w *wireVolumes) {
		k := key{w.Metadata.Namespace, w.Metadata.Name}
		p := w.pod()
		if known[k] == p.UID || len(p.Paths) == 0 || w.Status.Phase == "Succeeded" || w.Status.Phase == "Failed" {
			return
		}
		known[k] = p.UID
		fn(p)
	}
	f := follower[wireVolumes]{
		c: c, path: podsPath, selector: "spec.nodeName=" + node,
		version: func(w *wireVolumes) string { return w.Metadata.ResourceVersion },
		replace: func(all []wireVolumes) {
			there := map[key]bool{}
			for i := range all {
				there[key{all[i].Metadata.Namespace, all[i].Metadata.Name}] = true
				set(&all[i])
			}
			for k := range known {
				if !there[k] {
					delete(known, k)
				}
			}
		},
		changed: set,
		deleted: func(w *wireVolumes) { delete(known, key{w.Metadata.Namespace, w.Metadata.Name}) },
	}
	return f.run(ctx)
}

// wireVolumes contains the decoded fields of a Pod for its volumes.
type wireVolumes struct {
	Metadata struct {
		Namespace       string `json:"namespace"`
		Name            string `json:"name"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		Volumes []struct {
			HostPath *struct {
				Path string `json:"path"`
				Type string `json:"type"`
			} `json:"hostPath"`
		} `json:"volumes"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

func (w *wireVolumes) pod() HostPathPod {
	p := HostPathPod{Namespace: w.Metadata.Namespace, Name: w.Metadata.Name, UID: w.Metadata.UID}
	for _, v := range w.Spec.Volumes {
		if v.HostPath != nil {
			p.Paths = append(p.Paths, HostPath(*v.HostPath))
		}
	}
	return p
}
