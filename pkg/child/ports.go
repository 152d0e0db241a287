package child

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
	"github.com/rootlessnode/rootlessnode/pkg/status"
	"github.com/rootlessnode/rootlessnode/pkg/supervisor"
)

// Names of the forwards without which the node is of no use, in the status too: the API server's own, and in a cluster with
// other nodes the kubelet's and the pod network's.
const (
	apiForward     = "api"
	kubeletForward = "kubelet"
	podNetForward  = "pod-network"
)

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
	manager, closeIdle := portfwd.Dial(n.rt.APISocket())
	defer closeIdle()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opened := false
	var forwarder *portfwd.Forwarder
	start := func(cfg portfwd.Config) (err error) {
		o := n.portSources()
		o.Manager, o.Config, o.Ledger, o.Log, o.OnEvent = manager, cfg, n.data.Ports(), n.log, n.tellPort
		o.RestoreForeign = true // RootlessKit ends with us
		o.OnChange = func() {
			ports := forwarder.Status()
			n.hub.SetPorts(portPictures(ports))
			if n.hostAccess != nil {
				n.hostAccess.setForwarded(ports)
			}
			if opened {
				return
			}
			switch open, err := ownPorts(ports); {
			case err != nil:
				cancel(err)
			case open:
				opened = true
				ready()
			}
		}
		forwarder, err = portfwd.New(o)
		return err
	}
	stopFollowing, err := n.ports.run(n, start, func(cfg portfwd.Config) { forwarder.SetConfig(cfg) }, func(faults []layout.PortFault) {
		forwarder.SetTrouble(troubleOf(faults))
		n.hub.SetCondition(portsCondition(faults))
	})
	if err != nil {
		return err
	}
	defer stopFollowing()
	err = forwarder.Run(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !opened {
		return errors.Join(cause, err)
	}
	return err
}

// troubleOf is what the forwarder is told of faults.
func troubleOf(faults []layout.PortFault) map[portfwd.Bind]portfwd.Trouble {
	out := map[portfwd.Bind]portfwd.Trouble{}
	for _, f := range faults {
		if ip, err := netip.ParseAddr(f.HostIP); err == nil { // no forward of the node is without an address
			out[portfwd.Bind{Proto: f.Proto, IP: ip, Port: f.HostPort}] = portfwd.Trouble{Reason: f.Reason, Message: f.Message}
		}
	}
	return out
}

// portsCondition is met while all open ports take connections.
func portsCondition(faults []layout.PortFault) status.Condition {
	c := status.Condition{Type: status.ConditionPorts, OK: len(faults) == 0}
	var texts []string
	for _, f := range faults {
		c.Reason = f.Reason
		texts = append(texts, fmt.Sprintf("port %s/%s: %s", net.JoinHostPort(f.HostIP, strconv.Itoa(f.HostPort)), f.Proto, f.Message))
	}
	c.Message = strings.Join(texts, "; ")
	return c
}

// ownPorts tells how the node's own forwards fare: open once all are.
func ownPorts(ports []portfwd.PortStatus) (open bool, err error) {
	own := map[string]string{}
	for name, role := range map[string]string{
		apiForward:     "the API server's port %s (api.port)",
		kubeletForward: "the kubelet's port %s (inside.kubeletPort, at the node's address)",
		podNetForward:  "the pod network's port %s (flannel, at the node's address)",
	} {
		own[portfwd.Owner{Kind: portfwd.KindStatic, Name: name}.String()] = role
	}
	var errs []error
	open, found := true, false
	for _, p := range ports {
		role := own[p.Owner]
		if role == "" {
			continue
		}
		if p.State == portfwd.StateFailed {
			port := fmt.Sprintf("%s/%s", net.JoinHostPort(p.HostIP, strconv.Itoa(p.HostPort)), p.Proto)
			err := errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("forward "+role+": %s", port, p.Error))
			errs = append(errs, errdefs.WithHint(err, p.Hint))
		}
		open, found = open && p.State == portfwd.StateOpen, true
	}
	return open && found, errors.Join(errs...)
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
		case portfwd.StateWaiting:
			state = status.PortWaiting
		case portfwd.StateRefused:
			state = status.PortRefused
		}
		out = append(out, status.Port{
			HostIP: p.HostIP, HostPort: p.HostPort, Proto: p.Proto, NodePort: p.ChildPort, Owner: p.Owner,
			Kind: p.Kind, Namespace: p.Namespace, Name: p.Name, Port: p.Port,
			State: state, Since: p.Since, Reason: p.Reason, Error: p.Error, Hint: p.Hint,
		})
	}
	return out
}

// tellPort records what happened to a port of a Service or a pod as an Event on it.
func (n *nodeRole) tellPort(e portfwd.Event) {
	if e.Owner.Namespace == "" {
		return // the config's own, or made by hand
	}
	kind := kubeapi.EventNormal
	if e.Warning {
		kind = kubeapi.EventWarning
	}
	ev := kubeapi.Event{
		Object: kubeapi.ObjectRef{Kind: e.Owner.Kind, Namespace: e.Owner.Namespace, Name: e.Owner.Name, UID: e.Owner.UID},
		Type:   kind, Reason: e.Reason, Message: e.Message, Host: n.cfg.NodeName,
	}
	n.tell(ev)
}

// tell records an Event in the background, once, as well as it can: the status says the same.
func (n *nodeRole) tell(ev kubeapi.Event) {
	c, err := n.client()
	if err != nil {
		return
	}
	n.events.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), n.cfg.Timeouts.Health.D())
		defer cancel()
		if err := c.Event(ctx, ev); err != nil {
			n.log.WithError(err).Debug("record an event")
		}
	})
}
