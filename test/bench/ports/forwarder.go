package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
)

// forwarder runs the measured code in a separate process: a node's API client and port forwarder. It writes the number of open ports
// after every change.
func forwarder(kubeconfig, apiSock string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := kubeapi.New(kubeconfig, kubeapi.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	m, closeIdle := portfwd.Dial(apiSock)
	defer closeIdle()
	last := -1
	var f *portfwd.Forwarder
	f, err = portfwd.New(portfwd.Options{
		Manager: m, Source: services{c}, Endpoints: endpoints{c}, Config: portfwd.Config{NodePorts: true},
		OnChange: func() {
			n := 0
			for _, p := range f.Status() {
				if p.State == portfwd.StateOpen {
					n++
				}
			}
			if n != last {
				last = n
				fmt.Println(n)
			}
		},
	})
	if err != nil {
		return err
	}
	return f.Run(ctx)
}

type services struct{ c *kubeapi.Client }

func (s services) Run(ctx context.Context, sink portfwd.Sink) error {
	return s.c.WatchServices(ctx, false, func(e kubeapi.ServiceEvent) {
		switch e.Change {
		case kubeapi.ServicesListed:
			all := make([]portfwd.Service, len(e.Services))
			for i, svc := range e.Services {
				all[i] = convert(svc)
			}
			sink.Replace(all)
		case kubeapi.ServiceSet:
			sink.Set(convert(e.Service))
		case kubeapi.ServiceGone:
			sink.Delete(e.Service.Namespace, e.Service.Name)
		}
	})
}

func convert(s kubeapi.Service) portfwd.Service {
	out := portfwd.Service{Namespace: s.Namespace, Name: s.Name, UID: s.UID, Type: s.Type, IPFamilies: s.IPFamilies, ClusterIPs: s.ClusterIPs}
	for _, p := range s.Ports {
		out.Ports = append(out.Ports, portfwd.ServicePort(p))
	}
	return out
}

type endpoints struct{ c *kubeapi.Client }

func (s endpoints) Run(ctx context.Context, services []portfwd.Key, sink portfwd.EndpointSink) error {
	var names []kubeapi.ServiceName // nil selects all
	for _, key := range services {
		names = append(names, kubeapi.ServiceName(key))
	}
	return s.c.WatchEndpoints(ctx, "bench", names, func(e kubeapi.EndpointsEvent) {
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
