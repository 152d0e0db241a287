package noderole

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// Names, also in the status, of the forwards that the node requires: the API server's and, in a cluster with other
// nodes, the kubelet's and the pod network's.
const (
	apiForward     = "api"
	kubeletForward = kubelet.Name
	podNetForward  = component.ForwardPodNetwork
)

// portForwarder forwards the API server's port, the static ports and the ports of Services to the host. It needs no other
// unit; Services are added when the API server is ready.
type portForwarder struct {
	driver  string // ports.driver
	manager string // RootlessKit's API socket
	ledger  string
	log     logrus.FieldLogger
	hub     *status.Hub
	config  *portConfig
	events  *eventRecorder
	// hostAccess gets the open ports. It may be nil.
	hostAccess *hostAccess
	// sources has the sources of Services, endpoints and pods.
	sources portfwd.Options
}

// Run is ready when the node's required ports are open on the host, and returns an error if one of them cannot be
// opened. Failures of other ports only degrade the node.
func (p *portForwarder) Run(ctx context.Context, ready func()) error {
	if p.driver == config.DriverNone {
		ready()
		<-ctx.Done()
		return nil
	}
	manager, closeIdle := portfwd.Dial(p.manager)
	defer closeIdle()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opened := false
	var forwarder *portfwd.Forwarder
	o := p.sources
	o.Manager, o.Ledger, o.Log, o.OnEvent = manager, p.ledger, p.log, p.events.recordPort
	o.RestoreForeign = true // RootlessKit ends with the node
	o.OnChange = func() {
		ports := forwarder.Status()
		p.hub.SetPorts(portStatuses(ports))
		if p.hostAccess != nil {
			p.hostAccess.setForwarded(ports)
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
	start := func(cfg portfwd.Config) (err error) {
		o.Config = cfg
		forwarder, err = portfwd.New(o)
		return err
	}
	stopFollowing, err := p.config.run(start, func(cfg portfwd.Config) { forwarder.SetConfig(cfg) }, func(f layout.Forwarding) {
		forwarder.SetTrouble(portTroubles(f.Faults))
		p.hub.SetCondition(forwardingCondition(f))
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

// portTroubles converts port faults for the forwarder.
func portTroubles(faults []layout.PortFault) map[portfwd.Bind]portfwd.Trouble {
	out := map[portfwd.Bind]portfwd.Trouble{}
	for _, f := range faults {
		if ip, err := netip.ParseAddr(f.HostIP); err == nil { // all forwards of the node have an address
			out[portfwd.Bind{Proto: f.Proto, IP: ip, Port: f.HostPort}] = portfwd.Trouble{Reason: f.Reason, Message: f.Message}
		}
	}
	return out
}

// forwardingCondition returns the condition that all open ports accept connections, with a warning if the parent has few descriptors
// left for further ones.
func forwardingCondition(f layout.Forwarding) status.Condition {
	c := status.Condition{Type: status.ConditionForwarding, OK: len(f.Faults) == 0}
	var texts []string
	for _, p := range f.Faults {
		c.Reason = p.Reason
		texts = append(texts, fmt.Sprintf("port %s/%s: %s", net.JoinHostPort(p.HostIP, strconv.Itoa(p.HostPort)), p.Proto, p.Message))
	}
	if d := f.Descriptors; d != nil {
		texts = append(texts, fmt.Sprintf("%d of %d file descriptors of the node's parent process are open; each connection needs two", d.Open, d.Limit))
		c.Steps = errdefs.Text("# allow the account more open files (nofile in limits.conf, LimitNOFILE= of its unit), or close connections; then:").
			Do(errdefs.Stop).Do(errdefs.Start)
		if c.OK {
			c.Warning, c.Reason = true, "FewDescriptors"
		}
	}
	c.Message = strings.Join(texts, "; ")
	return c
}

// ownPorts reports whether all of the node's required forwards are open. It returns an error for those that failed.
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
			err := errdefs.Preflight("forward "+role+": %s", port, p.Error)
			errs = append(errs, errdefs.WithHint(err, p.Hint))
		}
		open, found = open && p.State == portfwd.StateOpen, true
	}
	return open && found, errors.Join(errs...)
}

func portStatuses(ports []portfwd.PortStatus) []status.Port {
	out := make([]status.Port, 0, len(ports))
	for _, p := range ports {
		state := status.PortPending
		switch p.State {
		case portfwd.StateOpen:
			state = status.PortForwarded
		case portfwd.StateFailed:
			state = status.PortFailed
			if p.RefusedByHost() {
				state = status.PortRefused
			}
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
