package noderole

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/kubeproxy"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// conditionWatch finds out whether a property of the node holds.
type conditionWatch interface {
	// Run reports each result until ctx ends. An error is a fault of the watch, not of the property; the watch is started
	// again then.
	Run(ctx context.Context, report conditionReporter) error
}

// conditionReporter publishes the results of a watch as one condition of the node. Its methods may be called concurrently.
type conditionReporter struct {
	kind string // one of the status.Condition constants
	hub  *status.Hub
}

// set publishes a result; repeated equal results have no effect. c.Type is ignored.
//
// OK with Warning means that the property holds but needs attention; the node stays ready. Pending means that the first
// result is still expected; the node is starting until then. Steps is the fix.
func (r conditionReporter) set(c status.Condition) {
	c.Type = r.kind
	r.hub.SetCondition(c)
}

// remove removes the condition, because the property does not apply to this node.
func (r conditionReporter) remove() { r.hub.RemoveCondition(r.kind) }

// conditionSet runs the watches of all conditions. They share one unit, because users know the conditions and not their
// watches.
type conditionSet struct {
	watches map[string]conditionWatch // by the type of their condition
	hub     *status.Hub
	log     logrus.FieldLogger
}

// watchRetry is the delay before a watch that failed is started again.
const watchRetry = 5 * time.Second

// Run runs all watches until ctx ends.
func (s *conditionSet) Run(ctx context.Context, ready func()) error {
	ready()
	var running sync.WaitGroup
	for kind, w := range s.watches {
		running.Go(func() { s.keep(ctx, w, conditionReporter{kind, s.hub}) })
	}
	<-ctx.Done()
	running.Wait()
	return nil
}

// keep runs one watch, again after each error.
func (s *conditionSet) keep(ctx context.Context, w conditionWatch, report conditionReporter) {
	for {
		err := w.Run(ctx, report)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("the watch ended")
		}
		s.log.WithError(err).Warnf("watch the condition %s", report.kind)
		report.set(status.Condition{Reason: "WatchFailed", Message: "the condition cannot be determined: " + err.Error()})
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchRetry):
		}
	}
}

// conditionWatches returns the watches of the node's conditions. Other units set the conditions that result from their work.
func (n *nodeRole) conditionWatches() map[string]conditionWatch {
	watches := map[string]conditionWatch{
		status.ConditionDisk:             n.diskWatch(),
		status.ConditionContainerRuntime: n.runtimeWatch(),
		status.ConditionUplink:           uplinkWatch{n.rt.NetworkFault()},
		status.ConditionHostRoutes:       routeWatch{n.rt.HostRoutes()},
		status.ConditionCertificates:     n.certificateWatch(),
	}
	if component.EmbeddedControlPlane(n.cfg) {
		watches[status.ConditionDatastore] = n.datastore
		watches[status.ConditionAddons] = newAddonWatch(n.cfg, n.log, n.serving(component.UnitAddons))
	}
	if w := newDNSWatch(n.env, n.serving(component.ClusterUnit(n.cfg, apiserver.Name), kubeproxy.Name)); w != nil {
		watches[status.ConditionClusterDNS] = w
	}
	return watches
}

// serving returns a function that waits for units and then returns the client.
func (n *nodeRole) serving(units ...string) func(context.Context) (*kubeapi.Client, error) {
	return func(ctx context.Context) (*kubeapi.Client, error) {
		for _, u := range units {
			if err := n.group.WaitFor(ctx, u, supervisor.Ready); err != nil {
				return nil, err
			}
		}
		return n.client()
	}
}
