package noderole

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// Units that are steps of the node role, not components, and that no component needs.
const (
	unitImages = "images"
	unitCNI    = "cni"
	// Watches the Node object's Ready condition.
	unitNode  = "node-object"
	unitPorts = "ports"
	// Tests mount propagation.
	unitMounts = "mounts"
	// Runs the watches of the node's conditions.
	unitConditions = "conditions"
	// Follows the host's entries in copied-up directories.
	unitEntries = "host-entries"
	// Reports pods whose hostPath volumes are in memory or hidden.
	unitHostPaths = "host-paths"
	// Relays host ports to the node.
	unitHostPorts = "host-ports"
	// Blocks connections to the host's own addresses.
	unitHostAccess = "host-access"
	// Removes the Node objects of former names.
	unitFormerNodes = "former-nodes"
	// Follows the host's search domains.
	unitResolver = "resolver"
	// Keeps the node's address up to date in the cluster.
	unitAddress = "node-address"
	// Decides which nodes may join the cluster.
	unitApprover = "node-approver"
)

// readyPoll is the interval between two readiness checks of a component that does not report its readiness.
const readyPoll = 20 * time.Millisecond

// units returns all units of the node. Units without needs start at once.
func (n *nodeRole) units() ([]supervisor.Unit, error) {
	var (
		units []supervisor.Unit
		errs  []error
	)
	for _, c := range n.components {
		switch {
		case c.Render != nil:
			u, err := n.unit(c)
			units, errs = append(units, u), append(errs, err)
		case c.Ready != nil:
			units = append(units, n.waitUnit(c))
		}
	}
	if component.EmbeddedControlPlane(n.cfg) {
		n.datastore = n.newDatastoreWatch()
	}
	units = append(units, n.tasks()...)
	for i := range units {
		units[i].Excuse = n.datastore.recentlyFull
	}
	stopAfterPods(units, n.components)
	return units, errors.Join(errs...)
}

// stopAfterPods makes the units stop after the pods that a stopping pod may still use, from its preStop hook or its
// program. kube-proxy is not among them because its rules stay when it ends. The DNS server is a pod itself.
func stopAfterPods(units []supervisor.Unit, components []component.Component) {
	outlive := []string{unitPorts, unitHostPorts}
	for _, c := range components {
		if c.OutlivesPods {
			outlive = append(outlive, c.Name)
		}
	}
	for i := range units {
		if slices.Contains(outlive, units[i].Name) {
			units[i].StopAfter = append(units[i].StopAfter, unitPods)
		}
	}
}

// waitUnit returns the unit that waits for a component that the user starts. It has no time limit; `up` shows that it is
// waiting.
func (n *nodeRole) waitUnit(c component.Component) supervisor.Unit {
	return supervisor.Unit{Name: c.Name, Backoff: n.backoff(), Task: func(ctx context.Context, ready func()) error {
		if err := supervisor.Poll(readyPoll, c.Name, c.Ready(n.env))(ctx); err != nil {
			return err
		}
		ready()
		<-ctx.Done()
		return nil
	}}
}

// unit returns the supervisor's unit for a component.
func (n *nodeRole) unit(c component.Component) (supervisor.Unit, error) {
	r, err := c.Render(n.env)
	if err != nil {
		return supervisor.Unit{}, err
	}
	dir, err := n.tree.EnsureLeaf(leaf(r.Name))
	if err != nil {
		return supervisor.Unit{}, err
	}
	check := c.Ready(n.env)
	t := n.cfg.Timeouts
	current := n.reloader.add(r)
	u := supervisor.Unit{
		Name: r.Name,
		Prepare: func(context.Context) error {
			r := current.Load()
			return errors.Join(component.MakeDirs(r.Dirs), component.Write(r.Files))
		},
		Process: func() (supervisor.Process, error) {
			r := current.Load()
			return supervisor.Process{
				Path: r.Path, Args: append([]string{r.Path}, r.Args...), Env: n.environ(r.Env),
				LogPath: n.data.Log(r.Name), CgroupDir: dir,
			}, nil
		},
		Explain:      func(lines []string) error { return explain(c, lines) },
		Ready:        supervisor.Poll(readyPoll, r.Name, check),
		Live:         check,
		LiveTimeout:  t.Health.D(),
		StartTimeout: t.ComponentStart.D(),
		StopGrace:    t.ComponentStop.D(),
		Essential:    !c.Optional,
		KeepChildren: c.KeepsChildren,
		Backoff:      n.backoff(),
	}
	if u.Essential {
		u.GiveUpAfter = n.cfg.Restart.GiveUpAfter
	}
	if c.Needs != nil {
		u.Needs = c.Needs(n.env)
	}
	if c.Live != nil {
		u.Live = c.Live(n.env)
	}
	return u, nil
}

// explain returns the cause for which a component ended, from the last lines that it wrote, with the fix if it is known.
func explain(c component.Component, lines []string) error {
	line := component.LastError(lines)
	if line == "" {
		return nil
	}
	fault, _ := component.FindFault(line, c.Faults)
	return errdefs.WithSteps(errors.New(line), fault.Fix)
}

func (n *nodeRole) backoff() supervisor.Backoff {
	r := n.cfg.Restart
	return supervisor.Backoff{Quick: r.Initial.D(), Initial: r.Initial.D(), Max: r.Max.D(), ResetAfter: r.ResetAfter.D()}
}

// transition copies a unit's state to the status.
func (n *nodeRole) transition(t supervisor.Transition) {
	c := status.Component{
		Name: t.Unit, State: status.ComponentState(t.To), PID: t.PID, Restarts: t.Restarts, Reason: t.Reason, Since: t.Time,
	}
	for _, u := range n.group.Status() {
		if u.Name == t.Unit {
			now := componentStatus(u)
			c.Log = now.Log
			if u.State == t.To {
				c.WaitingFor = now.WaitingFor
			}
		}
	}
	if t.Unit == unitPods && t.To == supervisor.Stopping {
		n.pods.Lock() // the stop may report progress before this transition arrives
		defer n.pods.Unlock()
		c.Reason = n.pods.text
	}
	n.hub.SetComponent(c, t.Tail)
}

// componentStatus returns the status of a unit.
func componentStatus(u supervisor.UnitStatus) status.Component {
	c := status.Component{
		Name: u.Name, State: status.ComponentState(u.State), Since: u.Since, PID: u.PID, Restarts: u.Restarts,
		Reason: u.Reason, Log: u.LogPath,
	}
	for _, w := range u.WaitingFor {
		c.WaitingFor = append(c.WaitingFor, w.String())
	}
	return c
}
