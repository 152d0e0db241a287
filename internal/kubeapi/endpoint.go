package kubeapi

import (
	"context"
	"slices"
	"strings"
)

const (
	slicesPath = "/apis/discovery.k8s.io/v1/endpointslices"
	// labelService is the label with the name of a slice's Service (discovery.k8s.io/v1, LabelServiceName). The other label
	// is on slices of headless Services, which kube-proxy ignores too. The name is the only field selector of
	// EndpointSlices.
	labelService = "kubernetes.io/service-name"
	notHeadless  = "!service.kubernetes.io/headless"
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
func (c *Client) WatchEndpoints(ctx context.Context, node string, services []ServiceName, fn func(EndpointsEvent)) error {
	b := endpointIndex{node: node, slices: map[key]sliceState{}, services: map[ServiceName]*endpointCount{}}
	report := func(name ServiceName, before Endpoints) {
		if now := b.of(name); now != before {
			fn(EndpointsEvent{Service: name, Endpoints: now})
		}
	}
	f := follower[wireSlice]{
		c: c, path: slicesPath, labels: slicesOf(services),
		version: func(w *wireSlice) string { return w.Metadata.ResourceVersion },
		replace: func(all []wireSlice) {
			clear(b.slices)
			clear(b.services)
			for i := range all {
				b.set(&all[i])
			}
			listed := make(map[ServiceName]Endpoints, len(b.services))
			for name := range b.services {
				if e := b.of(name); e != (Endpoints{}) {
					listed[name] = e
				}
			}
			fn(EndpointsEvent{Listed: true, All: listed})
		},
		changed: func(w *wireSlice) {
			name, before := w.service(), b.of(w.service())
			// A slice that now belongs to another Service no longer counts for the previous one.
			if old, there := b.slices[w.key()]; there && old.service != name {
				had := b.of(old.service)
				b.drop(w.key())
				report(old.service, had)
			}
			b.set(w)
			report(name, before)
		},
		deleted: func(w *wireSlice) {
			name := b.slices[w.key()].service
			before := b.of(name)
			b.drop(w.key())
			report(name, before)
		},
	}
	return f.run(ctx)
}

// slicesOf returns a label selector by name: a selector cannot contain pairs of namespace and name.
func slicesOf(services []ServiceName) string {
	if services == nil {
		return labelService + "," + notHeadless
	}
	names := make([]string, len(services))
	for i, s := range services {
		names[i] = s.Name
	}
	slices.Sort(names)
	return labelService + " in (" + strings.Join(slices.Compact(names), ",") + ")," + notHeadless
}

// endpointIndex counts, for each Service, the slices that have a usable endpoint.
type endpointIndex struct {
	node     string
	slices   map[key]sliceState
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

func (b *endpointIndex) set(w *wireSlice) {
	name := w.service()
	b.drop(w.key())
	if name.Name == "" {
		return
	}
	s := sliceState{name, w.has(b.node)}
	b.slices[w.key()] = s
	if b.services[name] == nil {
		b.services[name] = &endpointCount{}
	}
	b.services[name].add(s.has, 1)
}

func (b *endpointIndex) drop(k key) {
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

// wireSlice contains the decoded fields of an EndpointSlice.
type wireSlice struct {
	Metadata struct {
		Namespace       string `json:"namespace"`
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
		// Labels contains the label with the name of the Service (discovery.k8s.io/v1, LabelServiceName).
		Labels struct {
			Service string `json:"kubernetes.io/service-name"`
		} `json:"labels"`
	} `json:"metadata"`
	AddressType string         `json:"addressType"`
	Endpoints   []wireEndpoint `json:"endpoints"`
}

type wireEndpoint struct {
	NodeName   string `json:"nodeName"`
	Conditions struct {
		Ready   *bool `json:"ready"`
		Serving *bool `json:"serving"`
	} `json:"conditions"`
}

func (w *wireSlice) key() key { return key{w.Metadata.Namespace, w.Metadata.Name} }

func (w *wireSlice) service() ServiceName {
	return ServiceName{w.Metadata.Namespace, w.Metadata.Labels.Service}
}

func (w *wireSlice) has(node string) Endpoints {
	var ready, local bool
	for _, e := range w.Endpoints {
		if e.usable() {
			ready = true
			local = local || e.NodeName == node
		}
	}
	switch w.AddressType {
	case "IPv4":
		return Endpoints{Ready4: ready, Local4: local}
	case "IPv6":
		return Endpoints{Ready6: ready, Local6: local}
	}
	return Endpoints{} // FQDNs, which kube-proxy does not serve
}

// usable reports whether the endpoint accepts connections. A condition that is not set means true, as the API defines.
func (e *wireEndpoint) usable() bool {
	c := e.Conditions
	return c.Ready == nil || *c.Ready || c.Serving != nil && *c.Serving
}
