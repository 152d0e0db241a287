package kubeapi

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// WatchServices calls fn with the cluster's Services and then with every change of a field of Service until ctx ends. It
// returns ctx's error. Headless Services and those of type ExternalName are omitted; if exposed is set, also those of type
// ClusterIP, which have ports outside the cluster only through external addresses. The first event is ServicesListed;
// another one follows whenever the watch could not be continued where it broke off. Changes of other fields are not
// reported. fn is called from one goroutine and blocks the watch while it runs.
func (c workloads) WatchServices(ctx context.Context, exposed bool, fn func(ServiceEvent)) error {
	selector := servedServices
	if exposed {
		selector = exposedServices
	}
	t := tracker[corev1.Service, *corev1.Service, Service]{
		of:     func(s *corev1.Service) (Service, bool) { return serviceOf(s), true },
		listed: func(all []Service) { fn(ServiceEvent{Change: ServicesListed, Services: all}) },
		set: func(s Service, gone bool) {
			change := ServiceSet
			if gone {
				change = ServiceGone
			}
			fn(ServiceEvent{Change: change, Service: s})
		},
	}
	return t.run(ctx, c.conn, servicesPath, selector)
}

func serviceOf(o *corev1.Service) Service {
	s := Service{
		Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Type: string(o.Spec.Type),
		IPFamilies:               texts(o.Spec.IPFamilies),
		ExternalTrafficPolicy:    string(o.Spec.ExternalTrafficPolicy),
		HealthCheckNodePort:      int(o.Spec.HealthCheckNodePort),
		ExternalIPs:              o.Spec.ExternalIPs,
		ClusterIPs:               o.Spec.ClusterIPs,
		LoadBalancerSourceRanges: o.Spec.LoadBalancerSourceRanges,
		Annotations:              ownAnnotations(o.Annotations),
		Created:                  o.CreationTimestamp.Time,
	}
	if o.Spec.LoadBalancerClass != nil {
		s.LoadBalancerClass = *o.Spec.LoadBalancerClass
	}
	for _, in := range o.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			s.Ingress = append(s.Ingress, in.IP)
		}
	}
	for _, p := range o.Spec.Ports {
		s.Ports = append(s.Ports, ServicePort{Name: p.Name, Protocol: string(p.Protocol), Port: int(p.Port), NodePort: int(p.NodePort)})
	}
	return s
}

// texts converts a list of strings of another type; nil if it is empty.
func texts[S ~string](list []S) (out []string) {
	for _, s := range list {
		out = append(out, string(s))
	}
	return out
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
