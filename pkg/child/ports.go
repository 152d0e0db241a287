package child

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/component/apiserver"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
	"github.com/rootlessnode/rootlessnode/pkg/status"
	"github.com/rootlessnode/rootlessnode/pkg/supervisor"
)

// apiForward names the API server's own forward, in the status too.
const apiForward = "api"

// portsUnit forwards the API server's port, the static ports and those of Services to the host. It needs no other unit:
// the Services come when the API server is there.
func (n *nodeRole) portsUnit() supervisor.Unit {
	return supervisor.Unit{
		Name: unitPorts, Task: n.forwardPorts, Backoff: n.backoff(), Essential: true, GiveUpAfter: 1,
	}
}

// forwardPorts runs the forwarder. It is ready when the API server's port is open on the host; if that port cannot be
// had the node would be of no use, and it ends with an error. Any other port that cannot be had only degrades the node.
func (n *nodeRole) forwardPorts(ctx context.Context, ready func()) error {
	if n.cfg.Ports.Driver == "none" {
		ready()
		<-ctx.Done()
		return nil
	}
	cfg, err := n.portConfig()
	if err != nil {
		return err
	}
	manager, closeIdle := portfwd.Dial(n.rt.APISocket())
	defer closeIdle()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opened := false
	var forwarder *portfwd.Forwarder
	forwarder, err = portfwd.New(portfwd.Options{
		Manager: manager, Source: services{n}, Config: cfg, Ledger: n.data.Ports(), Log: n.log,
		OnEvent: n.tellPort,
		OnChange: func() {
			ports := forwarder.Status()
			n.hub.SetPorts(portPictures(ports))
			if opened {
				return
			}
			switch open, err := apiPort(ports); {
			case err != nil:
				cancel(err)
			case open:
				opened = true
				ready()
			}
		},
	})
	if err != nil {
		return err
	}
	err = forwarder.Run(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !opened {
		return errors.Join(cause, err)
	}
	return err
}

// apiPort tells how the API server's forward fares.
func apiPort(ports []portfwd.PortStatus) (open bool, err error) {
	api := portfwd.Owner{Kind: portfwd.KindStatic, Name: apiForward}.String()
	for _, p := range ports {
		if p.Owner != api {
			continue
		}
		if p.State == portfwd.StateFailed {
			err = errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("forward the API server's port %s:%d (api.port): %s", p.HostIP, p.HostPort, p.Error))
			return false, errdefs.WithHint(err, p.Hint)
		}
		open = p.State == portfwd.StateOpen
	}
	return open, nil
}

// portConfig says what is wanted besides Services.
func (n *nodeRole) portConfig() (portfwd.Config, error) {
	c := portfwd.Config{NodePorts: n.cfg.Ports.NodePorts}
	for _, a := range n.cfg.Ports.BindAddresses {
		ip, err := netip.ParseAddr(a)
		if err != nil {
			return c, fmt.Errorf("ports.bindAddresses: %w", err)
		}
		c.BindAddresses = append(c.BindAddresses, ip)
	}
	ip, err := netip.ParseAddr(n.cfg.API.BindAddress)
	if err != nil {
		return c, fmt.Errorf("api.bindAddress: %w", err)
	}
	c.Static = append(c.Static, portfwd.Static{
		Name: apiForward, Protocol: "tcp", HostIP: ip, HostPort: n.cfg.API.Port, ChildPort: n.cfg.Inside.APIServerPort,
	})
	for _, s := range n.cfg.Ports.Static {
		f, err := config.ParseForward(s)
		if err != nil {
			return c, fmt.Errorf("ports.static: %w", err)
		}
		c.Static = append(c.Static, portfwd.Static{Protocol: f.Proto, HostIP: f.HostIP, HostPort: f.HostPort, ChildPort: f.NodePort})
	}
	return c, nil
}

func portPictures(ports []portfwd.PortStatus) []status.Port {
	out := make([]status.Port, 0, len(ports))
	for _, p := range ports {
		state := status.PortPending
		switch p.State {
		case portfwd.StateOpen:
			state = status.PortForwarded
		case portfwd.StateFailed:
			state = status.PortFailed
		}
		out = append(out, status.Port{
			HostIP: p.HostIP, HostPort: p.HostPort, Proto: p.Proto, NodePort: p.ChildPort, Owner: p.Owner,
			State: state, Error: p.Error, Hint: p.Hint,
		})
	}
	return out
}

// tellPort records what happened to a Service's port as an Event on the Service.
func (n *nodeRole) tellPort(e portfwd.Event) {
	if e.Owner.Namespace == "" {
		return // the config's own
	}
	c, err := n.client()
	if err != nil {
		return // the status says it anyway
	}
	kind := kubeapi.EventNormal
	if e.Warning {
		kind = kubeapi.EventWarning
	}
	ev := kubeapi.Event{
		Object: kubeapi.ObjectRef{Kind: "Service", Namespace: e.Owner.Namespace, Name: e.Owner.Name, UID: e.Owner.UID},
		Type:   kind, Reason: e.Reason, Message: e.Message, Host: n.cfg.NodeName,
	}
	n.events.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), n.cfg.Timeouts.Health.D())
		defer cancel()
		if err := c.Event(ctx, ev); err != nil {
			n.log.WithError(err).Debug("record an event")
		}
	})
}

// services feeds the forwarder from the API server.
type services struct{ n *nodeRole }

func (s services) Run(ctx context.Context, sink portfwd.Sink) error {
	if err := s.n.group.WaitFor(ctx, apiserver.Name, supervisor.Ready); err != nil {
		return err
	}
	c, err := s.n.client()
	if err != nil {
		return err
	}
	return c.WatchServices(ctx, func(e kubeapi.ServiceEvent) {
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
	out := portfwd.Service{Namespace: s.Namespace, Name: s.Name, UID: s.UID, Type: s.Type, IPFamilies: s.IPFamilies}
	for _, p := range s.Ports {
		out.Ports = append(out.Ports, portfwd.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port, NodePort: p.NodePort})
	}
	return out
}
