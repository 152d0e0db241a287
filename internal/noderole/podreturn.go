package noderole

import (
	"context"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

const (
	// portsLimit is how long the ports of Services may take after their pods are ready. A Service may name a port on which no
	// container listens.
	portsLimit = 10 * time.Second
	// portsPoll is the interval between two attempts to connect to the ports of Services.
	portsPoll = 50 * time.Millisecond
	// portsDial limits one attempt to connect.
	portsDial = time.Second
)

// podReturn reports which pods of the last run, and which forwarded ports of their Services, are not back yet (Status.Restored).
type podReturn struct {
	node    string
	address string // of the node inside
	client  clientFunc
	hub     *status.Hub
	log     logrus.FieldLogger

	remembered, reset sync.Once
	known             chan struct{} // closed when the following fields are set and the pods' status is that of this run

	pods     []kubeapi.RunningPod
	services []kubeapi.ServiceName

	reported status.Restored
}

// aroundReset reads the pods that were ready at the end of the last run, calls reset, which resets their status, and lets Run start. If the
// pods cannot be read, there are none: the start must not depend on it.
func (r *podReturn) aroundReset(ctx context.Context, reset func(context.Context) error) error {
	r.remember(ctx)
	err := reset(ctx)
	if err == nil {
		r.reset.Do(func() { close(r.known) })
	}
	return err
}

func (r *podReturn) remember(ctx context.Context) {
	r.remembered.Do(func() {
		c, err := r.client()
		if err == nil {
			r.pods, err = c.ReadyPods(ctx, r.node)
		}
		if err == nil && len(r.pods) > 0 {
			r.services, err = c.ServicesOf(ctx, r.pods)
		}
		if err != nil {
			r.log.WithError(err).Warn("find the pods of the last run; up --wait=pods does not wait for them")
		}
	})
}

// Run reports the pods that are not back until all of them are.
func (r *podReturn) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-r.known:
	}
	if r.reported.Done { // before a restart of the container runtime
		return
	}
	if len(r.pods) > 0 {
		r.awaitPods(ctx)
		r.awaitPorts(ctx)
	}
	if ctx.Err() == nil {
		r.report(nil, true)
	}
}

// awaitPods waits until each pod is ready, has ended or is replaced.
func (r *podReturn) awaitPods(ctx context.Context) {
	c, err := r.client()
	if err != nil {
		return // remember has used it
	}
	watching, done := context.WithCancel(ctx)
	defer done()
	_ = c.WatchRunningPods(watching, r.node, func(now []kubeapi.RunningPod) {
		waiting := r.notReady(now)
		r.report(waiting, false)
		if len(waiting) == 0 {
			done()
		}
	}) // ends with watching
}

// notReady returns the names of the pods that still exist and are not ready.
func (r *podReturn) notReady(now []kubeapi.RunningPod) []string {
	var names []string
	for _, p := range r.pods {
		if slices.ContainsFunc(now, func(n kubeapi.RunningPod) bool { return n.UID == p.UID && !n.Ready }) {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	return names
}

// awaitPorts waits until the forwarded ports of the pods' Services accept connections.
func (r *podReturn) awaitPorts(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, portsLimit)
	defer cancel()
	tick := time.NewTicker(portsPoll)
	defer tick.Stop()
	for {
		closed := r.closedPorts(ctx)
		if len(closed) == 0 {
			return
		}
		r.report(closed, false)
		select {
		case <-ctx.Done():
			r.log.Infof("ports of Services that do not accept connections after the start: %v", closed)
			return
		case <-tick.C:
		}
	}
}

// closedPorts returns the forwarded ports of the pods and their Services that are not open yet.
func (r *podReturn) closedPorts(ctx context.Context) []string {
	var closed []string
	s := r.hub.Snapshot()
	for i := range s.Ports {
		p := &s.Ports[i]
		if !r.owns(p) {
			continue
		}
		open := p.State != status.PortWaiting && p.State != status.PortPending // a failed port does not open by waiting
		if p.Kind == portfwd.KindService && p.State == status.PortForwarded && isTCP4(p) {
			open = r.accepts(ctx, p.NodePort)
		}
		if !open {
			closed = append(closed, "port "+p.Address())
		}
	}
	return closed
}

func isTCP4(p *status.Port) bool {
	host, err := netip.ParseAddr(p.HostIP)
	return err == nil && host.Is4() && strings.HasPrefix(p.Proto, "tcp")
}

// owns reports whether a forwarded port belongs to one of the pods or their Services.
func (r *podReturn) owns(p *status.Port) bool {
	switch p.Kind {
	case portfwd.KindService:
		return slices.Contains(r.services, kubeapi.ServiceName{Namespace: p.Namespace, Name: p.Name})
	case portfwd.KindPod:
		return slices.ContainsFunc(r.pods, func(pod kubeapi.RunningPod) bool { return pod.Namespace == p.Namespace && pod.Name == p.Name })
	}
	return false
}

// accepts reports whether kube-proxy forwards connections to a port of the node.
func (r *podReturn) accepts(ctx context.Context, port int) bool {
	ctx, cancel := context.WithTimeout(ctx, portsDial)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(r.address, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// report publishes what the node still waits for.
func (r *podReturn) report(waiting []string, done bool) {
	now := status.Restored{Pods: len(r.pods), Waiting: waiting, Done: done}
	if reflect.DeepEqual(now, r.reported) {
		return
	}
	r.reported = now
	r.hub.Update(func(s *status.Status) { s.Restored = &now })
}
