package portfwd

import (
	"context"
	"time"
)

// Service is what is needed of a Kubernetes Service to know its ports on the host. Fields are named and valued as in the
// API.
type Service struct {
	Namespace, Name, UID string
	// Type is ClusterIP, NodePort, LoadBalancer or ExternalName.
	Type  string
	Ports []ServicePort
	// IPFamilies holds IPv4, IPv6 or both; none means IPv4.
	IPFamilies []string
	// ClusterIPs are where ports without a node port are reached inside.
	ClusterIPs  []string
	ExternalIPs []string
	// ExternalTrafficPolicy: Local lets only endpoints on this node count.
	ExternalTrafficPolicy string
	// HealthCheckNodePort is 0 if there is none.
	HealthCheckNodePort int
	LoadBalancerClass   string
	// LoadBalancerSourceRanges are the clients that may connect to a Service of type LoadBalancer, as CIDRs. None: all, unless
	// AnnotationSourceRanges has some.
	LoadBalancerSourceRanges []string
	// Ingress are the addresses that its load balancer status has at present.
	Ingress []string
	// Annotations need hold only AnnotationSourceRanges and those whose name begins with AnnotationPrefix.
	Annotations map[string]string
	// Created is when the API server created it. Of several that want the same port, the oldest gets it.
	Created time.Time
}

// ServicePort is one port of a Service. Protocol is TCP (also when empty), UDP or SCTP; NodePort is 0 if there is none.
type ServicePort struct {
	Name, Protocol string
	Port, NodePort int
}

// Pod is what is needed of a pod of this node to know its ports on the host. One that has ended is told of as deleted.
type Pod struct {
	Namespace, Name, UID string
	HostNetwork          bool
	// IPs are the pod's addresses; its ports are closed until it has one.
	IPs         []string
	Ports       []PodPort
	Annotations map[string]string
	// Created is when the API server created it.
	Created time.Time
}

// PodPort is one port that a container of the pod declares. HostPort is 0 and HostIP empty if it has none.
type PodPort struct {
	Name, Protocol          string
	ContainerPort, HostPort int
	HostIP                  string
}

// Key names a Service or a pod.
type Key struct{ Namespace, Name string }

// Endpoints says for which address families a Service has an endpoint that takes connections: anywhere, and on this node.
type Endpoints struct{ Ready4, Ready6, Local4, Local6 bool }

// Source tells of Services.
type Source interface {
	// Run calls sink from one goroutine until ctx ends. The first call is Replace. Nothing is removed from the host
	// before it, so a source that cannot reach its server leaves everything as it is.
	Run(ctx context.Context, sink Sink) error
}

// Sink takes what a Source tells. Its methods never block on anything but memory.
type Sink interface {
	// Replace: these are all Services there are.
	Replace(all []Service)
	// Set: this Service is new or has changed.
	Set(s Service)
	// Delete: the Service is gone; one that was never told of is no fault.
	Delete(namespace, name string)
}

// PodSource tells of this node's pods, by the rules of Source.
type PodSource interface {
	Run(ctx context.Context, sink PodSink) error
}

// PodSink takes what a PodSource tells.
type PodSink interface {
	Replace(all []Pod)
	Set(p Pod)
	Delete(namespace, name string)
}

// EndpointSource tells which Services have ready endpoints, by the rules of Source.
type EndpointSource interface {
	// Run tells of these services, which are never none and sorted, or of all if services is nil. What it tells of others
	// is not looked at. When others matter its ctx ends, after the first Replace, and Run is called anew.
	Run(ctx context.Context, services []Key, sink EndpointSink) error
}

// EndpointSink takes what an EndpointSource tells. A Service that it was not told of has no endpoint.
type EndpointSink interface {
	Replace(all map[Key]Endpoints)
	Set(service Key, e Endpoints)
}
