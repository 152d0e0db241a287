package kubeapi

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	slicesPath = "/apis/discovery.k8s.io/v1/endpointslices"
	// notHeadless excludes slices of headless Services, which kube-proxy ignores too. Slices are selected by labels, because
	// their only field selector is the name.
	notHeadless = "!" + corev1.IsHeadlessService
)

// Endpoints records for which address families a Service has a usable endpoint, on any node and on the given node. An
// endpoint is usable if it is ready, or if it still serves while it is terminating, because kube-proxy falls back to those.
type Endpoints struct{ Ready4, Ready6, Local4, Local6 bool }

// EndpointsEvent is one step of WatchEndpoints.
type EndpointsEvent struct {
	// Listed means that All holds every Service that has an endpoint; others have none.
	Listed bool
	All    map[ServiceName]Endpoints
	// Service and Endpoints are the changed Service if Listed is false.
	Service   ServiceName
	Endpoints Endpoints
}

// ServiceName names a Service.
type ServiceName struct{ Namespace, Name string }

// WatchEndpoints calls fn with the Services that have endpoints, on any node and on node. The rules of WatchServices apply.
// It watches the given services, and also those of the same names in other namespaces; if services is nil, it watches all
// Services that are not headless. It stores four counters for each Service and a few bytes for each slice, not the
// endpoints.
func (c workloads) WatchEndpoints(ctx context.Context, node string, services []ServiceName, fn func(EndpointsEvent)) error {
	b := endpointIndex{node: node, slices: map[types.NamespacedName]sliceState{}, services: map[ServiceName]*endpointCount{}}
	report := func(name ServiceName, before Endpoints) {
		if now := b.of(name); now != before {
			fn(EndpointsEvent{Service: name, Endpoints: now})
		}
	}
	f := follower[discoveryv1.EndpointSlice, *discoveryv1.EndpointSlice]{
		c: c.conn, path: slicesPath, labels: slicesOf(services),
		replace: func(all []*discoveryv1.EndpointSlice) {
			clear(b.slices)
			clear(b.services)
			for _, o := range all {
				b.set(o)
			}
			listed := make(map[ServiceName]Endpoints, len(b.services))
			for name := range b.services {
				if e := b.of(name); e != (Endpoints{}) {
					listed[name] = e
				}
			}
			fn(EndpointsEvent{Listed: true, All: listed})
		},
		changed: func(o *discoveryv1.EndpointSlice) {
			name, before := serviceOfSlice(o), b.of(serviceOfSlice(o))
			// A slice that now belongs to another Service no longer counts for the previous one.
			if old, there := b.slices[nameOf(o)]; there && old.service != name {
				had := b.of(old.service)
				b.drop(nameOf(o))
				report(old.service, had)
			}
			b.set(o)
			report(name, before)
		},
		deleted: func(o *discoveryv1.EndpointSlice) {
			name := b.slices[nameOf(o)].service
			before := b.of(name)
			b.drop(nameOf(o))
			report(name, before)
		},
	}
	return f.run(ctx)
}

// slicesOf returns a label selector by name: a selector cannot contain pairs of namespace and name.
func slicesOf(services []ServiceName) string {
	if services == nil {
		return discoveryv1.LabelServiceName + "," + notHeadless
	}
	names := make([]string, len(services))
	for i, s := range services {
		names[i] = s.Name
	}
	slices.Sort(names)
	return discoveryv1.LabelServiceName + " in (" + strings.Join(slices.Compact(names), ",") + ")," + notHeadless
}

// endpointIndex counts, for each Service, the slices that have a usable endpoint.
type endpointIndex struct {
	node     string
	slices   map[types.NamespacedName]sliceState
	services map[ServiceName]*endpointCount
}

type sliceState struct {
	service ServiceName
	has     Endpoints
}

// endpointCount counts slices.
type endpointCount struct{ ready4, ready6, local4, local6, slices int32 }

func (b *endpointIndex) of(name ServiceName) Endpoints {
	n := b.services[name]
	if n == nil {
		return Endpoints{}
	}
	return Endpoints{n.ready4 > 0, n.ready6 > 0, n.local4 > 0, n.local6 > 0}
}

func (b *endpointIndex) set(o *discoveryv1.EndpointSlice) {
	name := serviceOfSlice(o)
	b.drop(nameOf(o))
	if name.Name == "" {
		return
	}
	s := sliceState{name, endpointsOf(o, b.node)}
	b.slices[nameOf(o)] = s
	if b.services[name] == nil {
		b.services[name] = &endpointCount{}
	}
	b.services[name].add(s.has, 1)
}

func (b *endpointIndex) drop(k types.NamespacedName) {
	s, there := b.slices[k]
	if !there {
		return
	}
	delete(b.slices, k)
	n := b.services[s.service]
	if n.add(s.has, -1); n.slices == 0 {
		delete(b.services, s.service)
	}
}

func (n *endpointCount) add(e Endpoints, by int32) {
	n.slices += by
	for _, c := range []struct {
		has bool
		n   *int32
	}{{e.Ready4, &n.ready4}, {e.Ready6, &n.ready6}, {e.Local4, &n.local4}, {e.Local6, &n.local6}} {
		if c.has {
			*c.n += by
		}
	}
}

func serviceOfSlice(o *discoveryv1.EndpointSlice) ServiceName {
	return ServiceName{o.Namespace, o.Labels[discoveryv1.LabelServiceName]}
}

func endpointsOf(o *discoveryv1.EndpointSlice, node string) Endpoints {
	var ready, local bool
	for _, e := range o.Endpoints {
		// A condition that is not set means true, as the API defines; serving is only considered if it is set.
		if c := e.Conditions; c.Ready == nil || *c.Ready || c.Serving != nil && *c.Serving {
			ready = true
			local = local || e.NodeName != nil && *e.NodeName == node
		}
	}
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4:
		return Endpoints{Ready4: ready, Local4: local}
	case discoveryv1.AddressTypeIPv6:
		return Endpoints{Ready6: ready, Local6: local}
	}
	return Endpoints{} // FQDNs, which kube-proxy does not serve
}
