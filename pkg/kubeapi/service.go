package kubeapi

import (
	"context"
	"reflect"
	"strings"
	"time"
)

const (
	servicesPath = "/api/v1/services"
	// Nobody listens for headless Services, nor for names of others. The API selects Services by these two fields alone
	// (AddFieldLabelConversionsForService in Kubernetes' pkg/apis/core/v1/conversion.go); kube-proxy uses the first.
	servedServices  = "spec.clusterIP!=None,spec.type!=ExternalName"
	exposedServices = servedServices + ",spec.type!=ClusterIP"
	// AnnotationPrefix marks the annotations that are kept in a Service; all others but AnnotationSourceRanges are dropped on
	// arrival.
	AnnotationPrefix = "rootlessnode.dev/"
	// AnnotationSourceRanges is Kubernetes' own.
	AnnotationSourceRanges = "service.beta.kubernetes.io/load-balancer-source-ranges"
)

// Service is the part of a Service object that decides about ports on the host. Slices and maps are shared with the
// watch's own copy: read them, do not change them.
type Service struct {
	Namespace, Name, UID string
	// Type is ClusterIP, NodePort, LoadBalancer or ExternalName.
	Type  string
	Ports []ServicePort
	// IPFamilies holds IPv4, IPv6 or both.
	IPFamilies []string
	// ExternalTrafficPolicy is Cluster, Local or empty.
	ExternalTrafficPolicy string
	// HealthCheckNodePort is 0 if there is none.
	HealthCheckNodePort int
	LoadBalancerClass   string
	ExternalIPs         []string
	ClusterIPs          []string
	// LoadBalancerSourceRanges are as the user wrote them.
	LoadBalancerSourceRanges []string
	// Ingress are the addresses in its load balancer status; an entry with a host name instead is left out.
	Ingress []string
	// Annotations holds AnnotationSourceRanges and those that begin with AnnotationPrefix; nil if there are none.
	Annotations map[string]string
	// Created is the creation timestamp; zero if there is none.
	Created time.Time
}

// ServicePort is one port of a Service. Protocol is TCP, UDP or SCTP; NodePort is 0 if there is none.
type ServicePort struct {
	Name, Protocol string
	Port, NodePort int
}

// ServiceChange says what a ServiceEvent is about.
type ServiceChange int

const (
	// ServicesListed: Services holds all there are; whatever was known before and is not in it is gone.
	ServicesListed ServiceChange = iota
	// ServiceSet: Service is new or has changed.
	ServiceSet
	// ServiceGone: the Service with Service's namespace and name exists no longer.
	ServiceGone
)

// ServiceEvent is one step of WatchServices.
type ServiceEvent struct {
	Change   ServiceChange
	Service  Service
	Services []Service
}

// key names an object in its namespace.
type key struct{ namespace, name string }

// WatchServices tells fn of the cluster's Services, and then of every change that touches a field of Service, until ctx
// ends; it returns ctx's error. Headless ones and those of type ExternalName are left out, and if exposed those of type
// ClusterIP, which have a port outside the cluster by external addresses at most. The first event is ServicesListed, and another one follows whenever the watch could
// not be taken up where it broke off. An event that changes nothing is not passed on. fn is called from one goroutine
// and holds up the watch while it runs.
func (c *Client) WatchServices(ctx context.Context, exposed bool, fn func(ServiceEvent)) error {
	selector := servedServices
	if exposed {
		selector = exposedServices
	}
	known := map[key]Service{}
	f := follower[wireService]{
		c: c, path: servicesPath, selector: selector,
		version: func(w *wireService) string { return w.Metadata.ResourceVersion },
		replace: func(all []wireService) {
			clear(known)
			list := make([]Service, len(all))
			for i := range all {
				list[i] = all[i].service()
				known[key{list[i].Namespace, list[i].Name}] = list[i]
			}
			fn(ServiceEvent{Change: ServicesListed, Services: list})
		},
		changed: func(w *wireService) {
			s := w.service()
			k := key{s.Namespace, s.Name}
			if old, ok := known[k]; ok && reflect.DeepEqual(old, s) {
				return
			}
			known[k] = s
			fn(ServiceEvent{Change: ServiceSet, Service: s})
		},
		deleted: func(w *wireService) {
			s := w.service()
			k := key{s.Namespace, s.Name}
			if old, ok := known[k]; !ok || old.UID != s.UID {
				return // told already, or a successor of the same name is there
			}
			delete(known, k)
			fn(ServiceEvent{Change: ServiceGone, Service: s})
		},
	}
	return f.run(ctx)
}

// wireService is what is decoded of a Service object; encoding/json skips the rest without keeping it.
type wireService struct {
	Metadata struct {
		Namespace       string            `json:"namespace"`
		Name            string            `json:"name"`
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
		Created         time.Time         `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Type  string `json:"type"`
		Ports []struct {
			Name     string `json:"name"`
			Protocol string `json:"protocol"`
			Port     int    `json:"port"`
			NodePort int    `json:"nodePort"`
		} `json:"ports"`
		IPFamilies            []string `json:"ipFamilies"`
		ExternalTrafficPolicy string   `json:"externalTrafficPolicy"`
		HealthCheckNodePort   int      `json:"healthCheckNodePort"`
		LoadBalancerClass     string   `json:"loadBalancerClass"`
		ExternalIPs           []string `json:"externalIPs"`
		ClusterIPs            []string `json:"clusterIPs"`
		SourceRanges          []string `json:"loadBalancerSourceRanges"`
	} `json:"spec"`
	Status struct {
		LoadBalancer struct {
			Ingress []struct {
				IP string `json:"ip"`
			} `json:"ingress"`
		} `json:"loadBalancer"`
	} `json:"status"`
}

func (w *wireService) service() Service {
	s := Service{
		Namespace: w.Metadata.Namespace, Name: w.Metadata.Name, UID: w.Metadata.UID,
		Type:                  w.Spec.Type,
		IPFamilies:            w.Spec.IPFamilies,
		ExternalTrafficPolicy: w.Spec.ExternalTrafficPolicy,
		HealthCheckNodePort:   w.Spec.HealthCheckNodePort,
		LoadBalancerClass:     w.Spec.LoadBalancerClass,
		ExternalIPs:           w.Spec.ExternalIPs,
		ClusterIPs:            w.Spec.ClusterIPs,

		LoadBalancerSourceRanges: w.Spec.SourceRanges,
		Created:                  w.Metadata.Created,
	}
	for _, in := range w.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			s.Ingress = append(s.Ingress, in.IP)
		}
	}
	if len(w.Spec.Ports) > 0 {
		s.Ports = make([]ServicePort, len(w.Spec.Ports))
		for i, p := range w.Spec.Ports {
			s.Ports[i] = ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port, NodePort: p.NodePort}
		}
	}
	s.Annotations = ownAnnotations(w.Metadata.Annotations)
	return s
}

// ownAnnotations keeps those that decide about ports; nil if there are none.
func ownAnnotations(all map[string]string) map[string]string {
	var own map[string]string
	for k, v := range all {
		if strings.HasPrefix(k, AnnotationPrefix) || k == AnnotationSourceRanges {
			if own == nil {
				own = map[string]string{}
			}
			own[k] = v
		}
	}
	return own
}
