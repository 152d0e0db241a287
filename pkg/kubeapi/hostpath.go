package kubeapi

import "context"

// HostPathPod is a Pod with volumes that are directories, files or sockets of its node.
type HostPathPod struct {
	Namespace, Name, UID string
	Paths                []HostPath
}

// HostPath is one such volume. Type is empty, or one of Kubernetes' (DirectoryOrCreate, Socket, …).
type HostPath struct{ Path, Type string }

// WatchHostPaths calls fn once for each pod of one node that has hostPath volumes and has not ended, by the rules of
// WatchServices.
func (c *Client) WatchHostPaths(ctx context.Context, node string, fn func(HostPathPod)) error {
	known := map[key]string{} // uid
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

// wireVolumes is what is decoded of a Pod object for its volumes.
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
