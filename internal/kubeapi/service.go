package kubeapi

import (
	"context"
	"reflect"
	"strings"
	"time"
)

const (
	servicesPath = "/api/v1/services"
	// No forward is possible for headless Services and for external names. The API can select Services only by these two
	// fields (AddFieldLabelConversionsForService in Kubernetes' pkg/apis/core/v1/conversion.go); kube-proxy uses the first.
	servedServices  = "spec.clusterIP!=None,spec.type!=ExternalName"
	exposedServices = servedServices + ",spec.type!=ClusterIP"
	// AnnotationPrefix is the prefix of the annotations that are kept in a Service. All others except AnnotationSourceRanges
	// are dropped on arrival.
	AnnotationPrefix = "rootlessnode.dev/"
	// AnnotationSourceRanges is defined by Kubernetes.
	AnnotationSourceRanges = "service.beta.kubernetes.io/load-balancer-source-ranges"
)

// Service contains the fields of a Service that determine its ports on the host. Slices and maps are shared with the watch's
// copy: do not change them.
type Service struct {
	Namespace, Name, UID string
	// Type is ClusterIP, NodePort, LoadBalancer or ExternalName.
	Type  string
	Ports []ServicePort
	// IPFamilies holds IPv4, IPv6 or both.
	IPFamilies []string
	// ExternalTrafficPolicy is Cluster, Local or empty.
	ExternalTrafficPolicy string
	// HealthCheckNodePort is 0 if it is not set.
	HealthCheckNodePort int
	LoadBalancerClass   string
	ExternalIPs         []string
	ClusterIPs          []string
	// LoadBalancerSourceRanges are the unparsed values.
	LoadBalancerSourceRanges []string
	// Ingress are the addresses in the load balancer status; entries with a host name are omitted.
	Ingress []string
	// Annotations holds AnnotationSourceRanges and those with AnnotationPrefix; nil if there are none.
	Annotations map[string]string
	// Created is the creation timestamp; zero if it is not set.
	Created time.Time
}

// ServicePort is one port of a Service. Protocol is TCP, UDP or SCTP; NodePort is 0 if it is not set.
type ServicePort struct {
	Name, Protocol string
	Port, NodePort int
}

// ServiceChange is the kind of a ServiceEvent.
type ServiceChange int

const (
	// ServicesListed means that Services is the complete list; other known Services are gone.
	ServicesListed ServiceChange = iota
	// ServiceSet means that Service is new or changed.
	ServiceSet
	// ServiceGone means that the Service with this namespace and name was deleted.
	ServiceGone
)

// ServiceEvent is one step of WatchServices.
type ServiceEvent struct {
	Change   ServiceChange
	Service  Service
	Services []Service
}

// key is the namespace and the name of an object.
type key struct{ namespace, name string }

// WatchServices calls fn with the cluster's Services and then with every change of a field of Service until ctx ends. It
// returns ctx's error. Headless Services and those of type ExternalName are omitted; if exposed is set, also those of type
// ClusterIP, which have ports outside the cluster only through external addresses. The first event is ServicesListed;
// another one follows whenever the watch could not be continued where it broke off. Changes of other fields are not
// reported. fn is called from one goroutine and blocks the watch while it runs.
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
				return // already reported, or replaced by another one of the same name
			}
			delete(known, k)
			fn(ServiceEvent{Change: ServiceGone, Service: s})
		},
	}
	return f.run(ctx)
}

// wireService contains the decoded fields of a Service; encoding/json skips the others without storing them.
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

// ownAnnotations returns the annotations that affect ports; nil if there are none.
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
