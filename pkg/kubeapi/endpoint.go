package kubeapi

import (
	"context"
	"slices"
	"strings"
)

const (
	slicesPath = "/apis/discovery.k8s.io/v1/endpointslices"
	// labelService names a slice's Service (discovery.k8s.io/v1, LabelServiceName). The other label is on the slices of
	// headless Services, which kube-proxy does not look at either. EndpointSlices have no field to select by but their name.
	labelService = "kubernetes.io/service-name"
	notHeadless  = "!service.kubernetes.io/headless"
)

// Endpoints says for which address families a Service has an endpoint that takes connections, anywhere and on the node
// that was asked for. An endpoint takes connections if it is ready, or serves while it is being ended: kube-proxy falls
// back on those.
type Endpoints struct{ Ready4, Ready6, Local4, Local6 bool }

// EndpointsEvent is one step of WatchEndpoints.
type EndpointsEvent struct {
	// Listed: All holds every Service that has an endpoint; others have none.
	Listed bool
	All    map[ServiceName]Endpoints
	// Otherwise this Service's have changed.
	Service   ServiceName
	Endpoints Endpoints
}

// ServiceName names a Service.
type ServiceName struct{ Namespace, Name string }

// WatchEndpoints tells fn which Services have endpoints, and on node, by the rules of WatchServices. It is for these
// services, told of with others of the same names in other namespaces, or, if that is nil, for all that are not headless.
// It keeps four counts a Service and a few bytes a slice, not the endpoints.
func (c *Client) WatchEndpoints(ctx context.Context, node string, services []ServiceName, fn func(EndpointsEvent)) error {
	b := endpointBook{node: node, slices: map[key]sliceState{}, services: map[ServiceName]*endpointCount{}}
	tell := func(name ServiceName, before Endpoints) {
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
			// A slice that changes hands is no longer the first one's.
			if old, there := b.slices[w.key()]; there && old.service != name {
				had := b.of(old.service)
				b.drop(w.key())
				tell(old.service, had)
			}
			b.set(w)
			tell(name, before)
		},
		deleted: func(w *wireSlice) {
			name := b.slices[w.key()].service
			before := b.of(name)
			b.drop(w.key())
			tell(name, before)
		},
	}
	return f.run(ctx)
}

// slicesOf selects by name: a selector cannot hold pairs of namespace and name.
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

// endpointBook counts, for each Service, the slices that have a usable endpoint.
type endpointBook struct {
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

func (b *endpointBook) of(name ServiceName) Endpoints {
	n := b.services[name]
	if n == nil {
		return Endpoints{}
	}
	return Endpoints{n.ready4 > 0, n.ready6 > 0, n.local4 > 0, n.local6 > 0}
}

func (b *endpointBook) set(w *wireSlice) {
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

func (b *endpointBook) drop(k key) {
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

// wireSlice is what is decoded of an EndpointSlice.
type wireSlice struct {
	Metadata struct {
		Namespace       string `json:"namespace"`
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
		// Labels: the one that names its Service (discovery.k8s.io/v1, LabelServiceName).
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
	return Endpoints{} // names, which kube-proxy does not serve
}

// usable: an unset condition means yes, as the API says.
func (e *wireEndpoint) usable() bool {
	c := e.Conditions
	return c.Ready == nil || *c.Ready || c.Serving != nil && *c.Serving
}
