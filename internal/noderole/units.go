package noderole

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/controllermanager"
	"github.com/rootlessnode/rootlessnode/internal/component/etcd"
	"github.com/rootlessnode/rootlessnode/internal/component/flannel"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/component/kubeproxy"
	"github.com/rootlessnode/rootlessnode/internal/component/networkpolicy"
	"github.com/rootlessnode/rootlessnode/internal/component/scheduler"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// Units that are steps of the node role, not components.
const (
	unitAddons     = "addons"
	unitRoles      = "api-roles"
	unitStaleNode  = "stale-node"
	unitImages     = "images"
	unitRegistered = "node-registered"
	unitCNI        = "cni"
	// Watches the Node object's Ready condition.
	unitNode  = "node-object"
	unitPorts = "ports"
	// Tests mount propagation.
	unitMounts = "mounts"
	// Follows the host's entries in copied-up directories.
	unitEntries = "host-entries"
	// Reports pods whose hostPath volumes are in memory or hidden.
	unitHostPaths = "host-paths"
	// Relays host ports to the node.
	unitHostPorts = "host-ports"
	// Blocks connections to the host's own addresses.
	unitHostAccess = "host-access"
	// Requests a worker's credentials; keeps the node's address up to date in the cluster.
	unitJoin    = "join"
	unitAddress = "node-address"
	// Decides which nodes may join the cluster.
	unitApprover = "node-approver"
)

// readyPoll is the interval between two readiness checks of a component that does not report its readiness.
const readyPoll = 20 * time.Millisecond

// program is a component with its place in the node role.
type program struct {
	render func(component.Env) (component.Rendered, error)
	ready  func(component.Env) func(context.Context) error
	needs  []supervisor.Need
	adapt  func(*supervisor.Unit)
}

// units returns all units of the node. Units without needs start at once.
func (n *nodeRole) units() ([]supervisor.Unit, error) {
	programs := []program{
		{kubelet.Render, kubelet.Ready, needs(n.runtimeUnit(), unitStaleNode), nil},
	}
	if n.cfg.Joins() {
		programs = append(programs, program{kubeproxy.Render, kubeproxy.Ready, needs(unitRegistered), nil})
	} else {
		programs = append(programs,
			program{etcd.Render, etcd.Ready, nil, nil},
			// kube-apiserver waits for etcd itself, and has a second of work to do before it connects.
			program{apiserver.Render, apiserver.Serving, []supervisor.Need{{Name: etcd.Name, State: supervisor.Running}}, n.adaptAPIServer},
			program{controllermanager.Render, controllermanager.Ready, needs(unitRoles), nil},
			program{scheduler.Render, scheduler.Ready, needs(unitRoles), nil},
			program{kubeproxy.Render, kubeproxy.Ready, needs(unitRegistered, unitRoles), nil})
	}
	if n.cfg.CNI == config.CNIFlannel {
		programs = append(programs, program{flannel.Render, flannel.Ready, needs(n.unitOrJoin(unitAddons)), nil})
	}
	if n.cfg.EnforcesPolicies() {
		programs = append(programs, program{networkpolicy.Render, networkpolicy.Ready, needs(n.unitOrJoin(unitAddons)), nil})
	}
	var (
		units []supervisor.Unit
		errs  []error
	)
	for _, p := range append(n.runtimePrograms(), programs...) {
		u, err := n.unit(p)
		units, errs = append(units, u), append(errs, err)
	}
	units = append(units, n.tasks()...)
	stopAfterPods(units)
	return units, errors.Join(errs...)
}

// unitOrJoin returns the unit that must be ready before the cluster can be used: own on a node with a control plane,
// unitJoin on a worker.
func (n *nodeRole) unitOrJoin(own string) string {
	if n.cfg.Joins() {
		return unitJoin
	}
	return own
}

func needs(names ...string) []supervisor.Need {
	var out []supervisor.Need
	for _, name := range names {
		out = append(out, supervisor.Need{Name: name, State: supervisor.Ready})
	}
	return out
}

// unit returns the supervisor's unit for a component.
func (n *nodeRole) unit(p program) (supervisor.Unit, error) {
	r, err := p.render(n.env)
	if err != nil {
		return supervisor.Unit{}, err
	}
	dir, err := n.tree.EnsureLeaf(leaf(r.Name))
	if err != nil {
		return supervisor.Unit{}, err
	}
	check := p.ready(n.env)
	t := n.cfg.Timeouts
	u := supervisor.Unit{
		Name:  r.Name,
		Needs: p.needs,
		Prepare: func(context.Context) error {
			return errors.Join(component.MakeDirs(r.Dirs), component.Write(r.Files))
		},
		Process: func() (supervisor.Process, error) {
			return supervisor.Process{
				Path: r.Path, Args: append([]string{r.Path}, r.Args...), Env: n.environ(r.Env),
				LogPath: n.data.Log(r.Name), CgroupDir: dir,
			}, nil
		},
		Ready:        supervisor.Poll(readyPoll, r.Name, check),
		Live:         check,
		LiveTimeout:  t.Health.D(),
		StartTimeout: t.ComponentStart.D(),
		StopGrace:    t.ComponentStop.D(),
		GiveUpAfter:  n.cfg.Restart.GiveUpAfter,
		Essential:    true,
		Backoff:      n.backoff(),
	}
	if p.adapt != nil {
		p.adapt(&u)
	}
	return u, nil
}

func (n *nodeRole) backoff() supervisor.Backoff {
	r := n.cfg.Restart
	return supervisor.Backoff{Quick: r.Initial.D(), Initial: r.Initial.D(), Max: r.Max.D(), ResetAfter: r.ResetAfter.D()}
}

// adaptAPIServer sets a liveness check that is weaker than the readiness check.
func (n *nodeRole) adaptAPIServer(u *supervisor.Unit) { u.Live = apiserver.Alive(n.env) }

// environ returns the environment of components: the inherited variables, and a PATH with the components first.
func (n *nodeRole) environ(extra []string) []string {
	env := append(n.baseEnv(), "PATH="+n.path(), "NODE_NAME="+n.cfg.NodeName)
	return append(env, extra...)
}

// path returns the PATH in which bundled components come before the host's programs of the same name.
func (n *nodeRole) path() string {
	return n.cfg.ComponentsDir + string(filepath.ListSeparator) +
		"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
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
