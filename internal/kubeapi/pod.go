package kubeapi

import (
	"context"
	"reflect"
	"time"
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
func (c *Client) WatchPods(ctx context.Context, node string, fn func(PodEvent)) error {
	known := map[key]Pod{}
	f := follower[wirePod]{
		c: c, path: podsPath, selector: "spec.nodeName=" + node,
		version: func(w *wirePod) string { return w.Metadata.ResourceVersion },
		replace: func(all []wirePod) {
			clear(known)
			list := []Pod{}
			for i := range all {
				if p, relevant := all[i].pod(); relevant {
					known[key{p.Namespace, p.Name}] = p
					list = append(list, p)
				}
			}
			fn(PodEvent{Listed: true, Pods: list})
		},
		changed: func(w *wirePod) {
			p, relevant := w.pod()
			k := key{p.Namespace, p.Name}
			old, there := known[k]
			switch {
			case !relevant && there:
				delete(known, k)
				fn(PodEvent{Gone: true, Pod: p})
			case relevant && (!there || !reflect.DeepEqual(old, p)):
				known[k] = p
				fn(PodEvent{Pod: p})
			}
		},
		deleted: func(w *wirePod) {
			p, _ := w.pod()
			k := key{p.Namespace, p.Name}
			if old, there := known[k]; there && old.UID == p.UID {
				delete(known, k)
				fn(PodEvent{Gone: true, Pod: p})
			}
		},
	}
	return f.run(ctx)
}

// wirePod contains the decoded fields of a Pod.
type wirePod struct {
	Metadata struct {
		Namespace       string            `json:"namespace"`
		Name            string            `json:"name"`
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
		Created         time.Time         `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		HostNetwork    bool            `json:"hostNetwork"`
		Containers     []wireContainer `json:"containers"`
		InitContainers []wireContainer `json:"initContainers"`
	} `json:"spec"`
	Status struct {
		Phase  string `json:"phase"`
		PodIPs []struct {
			IP string `json:"ip"`
		} `json:"podIPs"`
	} `json:"status"`
}

type wireContainer struct {
	RestartPolicy string `json:"restartPolicy"`
	Ports         []struct {
		Name          string `json:"name"`
		Protocol      string `json:"protocol"`
		ContainerPort int    `json:"containerPort"`
		HostPort      int    `json:"hostPort"`
		HostIP        string `json:"hostIP"`
	} `json:"ports"`
}

// pod converts w. relevant reports whether the pod can have ports on the host.
func (w *wirePod) pod() (p Pod, relevant bool) {
	p = Pod{
		Namespace: w.Metadata.Namespace, Name: w.Metadata.Name, UID: w.Metadata.UID,
		HostNetwork: w.Spec.HostNetwork, Annotations: ownAnnotations(w.Metadata.Annotations),
		Created: w.Metadata.Created,
	}
	for _, ip := range w.Status.PodIPs {
		p.IPs = append(p.IPs, ip.IP)
	}
	containers := w.Spec.Containers
	for _, c := range w.Spec.InitContainers {
		if c.RestartPolicy == "Always" { // a sidecar, which lives as long as the pod
			containers = append(containers, c)
		}
	}
	for _, c := range containers {
		for _, q := range c.Ports {
			p.Ports = append(p.Ports, PodPort{q.Name, q.Protocol, q.ContainerPort, q.HostPort, q.HostIP})
			relevant = relevant || q.HostPort != 0 || w.Spec.HostNetwork
		}
	}
	return p, relevant && w.Status.Phase != "Succeeded" && w.Status.Phase != "Failed"
}
