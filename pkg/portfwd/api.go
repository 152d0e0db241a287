package portfwd

import (
	"context"
	"time"
)

// Service holds the fields of a Kubernetes Service that determine its ports on the host. Names and values are those of the
// API.
type Service struct {
	Namespace, Name, UID string
	// Type is ClusterIP, NodePort, LoadBalancer or ExternalName.
	Type  string
	Ports []ServicePort
	// IPFamilies holds IPv4, IPv6 or both; an empty list means IPv4.
	IPFamilies []string
	// ClusterIPs are the addresses inside the node for ports without a node port.
	ClusterIPs  []string
	ExternalIPs []string
	// ExternalTrafficPolicy is Cluster or Local. With Local, only endpoints on this node count.
	ExternalTrafficPolicy string
	// HealthCheckNodePort is 0 if it is not set.
	HealthCheckNodePort int
	LoadBalancerClass   string
	// LoadBalancerSourceRanges are the clients, as CIDRs, that may connect to a Service of type LoadBalancer. If it is
	// empty, AnnotationSourceRanges applies, and all clients may connect if that is not set either.
	LoadBalancerSourceRanges []string
	// Ingress are the current addresses in the load balancer status.
	Ingress []string
	// Annotations must contain AnnotationSourceRanges and those whose name begins with AnnotationPrefix; others are ignored.
	Annotations map[string]string
	// Created is the creation time. Of several Services or pods that want the same port, the oldest gets it.
	Created time.Time
}

// ServicePort is one port of a Service. Protocol is TCP (also if empty), UDP or SCTP; NodePort is 0 if it is not set.
type ServicePort struct {
	Name, Protocol string
	Port, NodePort int
}

// Pod holds the fields of a pod of this node that determine its ports on the host. A pod that has ended is reported as
// deleted.
type Pod struct {
	Namespace, Name, UID string
	HostNetwork          bool
	// IPs are the pod's addresses. Its ports are closed until it has one.
	IPs         []string
	Ports       []PodPort
	Annotations map[string]string
	// Created is the creation time.
	Created time.Time
}

// PodPort is one port that a container of the pod declares. HostPort is 0 and HostIP is empty if they are not set.
type PodPort struct {
	Name, Protocol          string
	ContainerPort, HostPort int
	HostIP                  string
}

// Key names a Service or a pod.
type Key struct{ Namespace, Name string }

// Endpoints records for which address families a Service has a ready endpoint: on any node, and on this node.
type Endpoints struct{ Ready4, Ready6, Local4, Local6 bool }

// Source watches Services.
type Source interface {
	// Run calls sink from one goroutine until ctx ends. The first call must be Replace. No forward is removed from the host
	// before it, so a source that cannot reach its server leaves everything unchanged.
	Run(ctx context.Context, sink Sink) error
}

// Sink receives the Services of a Source. Its methods do not wait for I/O.
type Sink interface {
	// Replace sets the complete list of Services.
	Replace(all []Service)
	// Set adds or updates one Service.
	Set(s Service)
	// Delete removes a Service; an unknown one is ignored.
	Delete(namespace, name string)
}

// PodSource watches the pods of this node. The rules of Source apply.
type PodSource interface {
	Run(ctx context.Context, sink PodSink) error
}

// PodSink receives the pods of a PodSource.
type PodSink interface {
	Replace(all []Pod)
	Set(p Pod)
	Delete(namespace, name string)
}

// EndpointSource watches which Services have ready endpoints. The rules of Source apply.
type EndpointSource interface {
	// Run watches the endpoints of these Services (sorted, never empty), or of all Services if services is nil. Results for
	// other Services are ignored. When the set of relevant Services changes, ctx ends after the first Replace and Run is
	// called again.
	Run(ctx context.Context, services []Key, sink EndpointSink) error
}

// EndpointSink receives the results of an EndpointSource. A Service that is not in them has no endpoint.
type EndpointSink interface {
	Replace(all map[Key]Endpoints)
	Set(service Key, e Endpoints)
}
