package noderole

import (
	"context"
	"net/netip"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
)

// servingFunc waits for the API server and returns a client.
type servingFunc func(context.Context) (*kubeapi.Client, error)

// portSources returns the forwarder's options for the sources that the config enables. current also waits until the API has no
// addresses of the last run's pods any more.
func portSources(cfg *config.NodeConfig, rt layout.Runtime, serving, current servingFunc) portfwd.Options {
	var o portfwd.Options
	p := cfg.Ports
	s, reset := source{cfg, serving}, source{cfg, current}
	if p.NodePorts || p.LoadBalancers || len(p.ExternalIPs) > 0 {
		o.Source = services{s}
		if p.WaitForEndpoints {
			o.Endpoints = endpoints{reset}
		}
	}
	if p.LoadBalancers && cfg.ControlPlane.Embedded { // in other clusters the first node publishes them
		o.Publisher = ingress{s}
	}
	if p.PodHostPorts || p.HostNetworkPods {
		o.Pods = pods{reset}
	}
	if p.Driver == config.PortsBuiltin { // other drivers do not know the addresses of clients
		o.SourceFilter = sourceFilter{rt.SourcesSocket()}
	}
	return o
}

// source has the fields that all sources use.
type source struct {
	cfg     *config.NodeConfig
	serving servingFunc
}

// sourceFilter sends the allowed client addresses of each port to the port driver in the parent.
type sourceFilter struct{ socket string }

func (s sourceFilter) SetSources(ctx context.Context, allowed map[portfwd.Bind][]netip.Prefix) error {
	list := make([]portdriver.SourceRange, 0, len(allowed))
	for b, prefixes := range allowed {
		list = append(list, portdriver.SourceRange{Proto: b.Proto, IP: b.IP, Port: b.Port, Allowed: prefixes})
	}
	return portdriver.SetSources(ctx, s.socket, list)
}

// services passes Services to the forwarder.
type services struct{ source }

func (s services) Run(ctx context.Context, sink portfwd.Sink) error {
	c, err := s.serving(ctx)
	if err != nil {
		return err
	}
	// Without external addresses, Services of type ClusterIP are only needed for an Event about their externalIPs. In a
	// cluster with many Services, only the control plane's node records it.
	exposed := len(s.cfg.Ports.ExternalIPs) == 0 && s.cfg.Joins()
	return c.WatchServices(ctx, exposed, func(e kubeapi.ServiceEvent) {
		switch e.Change {
		case kubeapi.ServicesListed:
			all := make([]portfwd.Service, 0, len(e.Services))
			for _, svc := range e.Services {
				all = append(all, forwardable(svc))
			}
			sink.Replace(all)
		case kubeapi.ServiceSet:
			sink.Set(forwardable(e.Service))
		case kubeapi.ServiceGone:
			sink.Delete(e.Service.Namespace, e.Service.Name)
		}
	})
}

func forwardable(s kubeapi.Service) portfwd.Service {
	out := portfwd.Service{
		Namespace: s.Namespace, Name: s.Name, UID: s.UID, Type: s.Type, IPFamilies: s.IPFamilies, ClusterIPs: s.ClusterIPs,
		ExternalIPs: s.ExternalIPs, ExternalTrafficPolicy: s.ExternalTrafficPolicy, HealthCheckNodePort: s.HealthCheckNodePort,
		LoadBalancerClass: s.LoadBalancerClass, Ingress: s.Ingress, Annotations: s.Annotations,
		LoadBalancerSourceRanges: s.LoadBalancerSourceRanges, Created: s.Created,
	}
	for _, p := range s.Ports {
		out.Ports = append(out.Ports, portfwd.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port, NodePort: p.NodePort})
	}
	return out
}

// endpoints reports to the forwarder which Services have endpoints.
type endpoints struct{ source }

func (s endpoints) Run(ctx context.Context, services []portfwd.Key, sink portfwd.EndpointSink) error {
	c, err := s.serving(ctx)
	if err != nil {
		return err
	}
	var names []kubeapi.ServiceName // nil for all
	for _, key := range services {
		names = append(names, kubeapi.ServiceName(key))
	}
	return c.WatchEndpoints(ctx, s.cfg.NodeName, names, func(e kubeapi.EndpointsEvent) {
		if !e.Listed {
			sink.Set(portfwd.Key(e.Service), portfwd.Endpoints(e.Endpoints))
			return
		}
		all := make(map[portfwd.Key]portfwd.Endpoints, len(e.All))
		for name, has := range e.All {
			all[portfwd.Key(name)] = portfwd.Endpoints(has)
		}
		sink.Replace(all)
	})
}

// pods passes this node's pods to the forwarder.
type pods struct{ source }

func (s pods) Run(ctx context.Context, sink portfwd.PodSink) error {
	c, err := s.serving(ctx)
	if err != nil {
		return err
	}
	return c.WatchPods(ctx, s.cfg.NodeName, func(e kubeapi.PodEvent) {
		switch {
		case e.Listed:
			all := make([]portfwd.Pod, 0, len(e.Pods))
			for _, p := range e.Pods {
				all = append(all, forwardablePod(p))
			}
			sink.Replace(all)
		case e.Gone:
			sink.Delete(e.Pod.Namespace, e.Pod.Name)
		default:
			sink.Set(forwardablePod(e.Pod))
		}
	})
}

func forwardablePod(p kubeapi.Pod) portfwd.Pod {
	out := portfwd.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, HostNetwork: p.HostNetwork, IPs: p.IPs, Annotations: p.Annotations,
		Created: p.Created,
	}
	for _, q := range p.Ports {
		out.Ports = append(out.Ports, portfwd.PodPort(q))
	}
	return out
}

// ingress publishes the addresses of Services of type LoadBalancer.
type ingress struct{ source }

func (s ingress) PublishIngress(ctx context.Context, svc portfwd.Service, addrs []netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeouts.Health.D())
	defer cancel()
	c, err := s.serving(ctx)
	if err != nil {
		return err
	}
	ips := make([]string, len(addrs))
	for i, a := range addrs {
		ips[i] = a.String()
	}
	return c.ApplyIngress(ctx, svc.Namespace, svc.Name, svc.UID, ips)
}
