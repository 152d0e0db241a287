package noderole

import (
	"context"
	"slices"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/copyup"
)

// tasks returns the units that run in this process.
func (n *nodeRole) tasks() []supervisor.Unit {
	cfg := n.cfg
	task := func(name string, f func(context.Context, func()) error, needed ...string) supervisor.Unit {
		return supervisor.Unit{Name: name, Needs: component.NeedReady(needed...), Backoff: n.backoff(), Task: f}
	}
	oneShot := func(name string, f func(context.Context) error, needed ...string) supervisor.Unit {
		u := task(name, func(ctx context.Context, _ func()) error { return f(ctx) }, needed...)
		u.OneShot, u.GiveUpAfter, u.Essential = true, cfg.Restart.GiveUpAfter, true
		return u
	}
	cluster := component.ClusterUnit(cfg, apiserver.Name)
	object := &nodeObject{env: n.env, data: n.data, log: n.log, client: n.client, address: n.address}
	node := &nodeWatch{name: cfg.NodeName, started: n.handover.StartedAt, hub: n.hub, log: n.log, client: n.client, patience: restoreNodeAfter}
	if !cfg.Joins() {
		node.restart = func(unit string) error { return n.group.Restart(unit) }
	}
	mounts := &mountWatch{propagation: cfg.Mounts.Propagation, log: n.log, hub: n.hub, processes: func() []supervisor.UnitStatus {
		return slices.DeleteFunc(n.group.Status(), func(u supervisor.UnitStatus) bool {
			return u.PID == 0 || u.Name != kubelet.Name && u.Name != n.runtime.Unit()
		})
	}}
	conditions := &conditionSet{watches: n.conditionWatches(), hub: n.hub, log: n.log}
	hostPaths := &podFeatureWatch{node: cfg.NodeName, files: n.files, client: n.client, events: n.events}
	forwarder := &portForwarder{
		driver: cfg.Ports.Driver, manager: n.rt.APISocket(), ledger: n.data.Ports(), log: n.log, hub: n.hub, config: n.ports,
		events: n.events, hostAccess: n.hostAccess, sources: portSources(cfg, n.rt, n.serving(cluster), n.serving(component.UnitStaleNode)),
	}
	ports := task(unitPorts, forwarder.Run)
	ports.Essential, ports.GiveUpAfter = true, 1
	returned := &podReturn{
		node: cfg.NodeName, address: n.env.NodeIP, client: n.client, hub: n.hub, log: n.log, known: make(chan struct{}),
	}
	pods := &podStopper{
		programs: n.programs, cfg: cfg, nodeIP: n.env.NodeIP, log: n.log, tree: n.tree, client: n.client, progress: n.pods,
		returned: returned, limit: &n.podLimit,
	}
	units := []supervisor.Unit{
		oneShot(component.UnitStaleNode, func(ctx context.Context) error {
			return returned.aroundReset(ctx, object.reset)
		}, cluster),
		oneShot(component.UnitRegistered, func(ctx context.Context) error {
			err := object.waitRegistered(ctx)
			if err == nil { // for users who can only see the cluster
				for _, ev := range unenforcedEvents(cfg, n.handover.Cgroup) {
					n.events.record(ev)
				}
			}
			return err
		}, kubelet.Name),
		task(unitNode, node.Run, cluster),
		ports,
		pods.unit(n.runtime.Unit(), n.backoff()),
		task(unitMounts, mounts.Run),
		task(unitResolver, (&resolver{n.env, n.rt.HostResolver(), "/etc/resolv.conf", component.Write}).Run),
		task(unitConditions, conditions.Run),
		task(unitEntries, func(ctx context.Context, ready func()) error { return copyup.FollowHost(ctx, n.files, ready) }),
		task(unitHostPaths, hostPaths.Run, component.UnitRegistered),
	}
	joiner := &joiner{env: n.env, kubeconfig: n.data.AdminKubeconfig(), log: n.log, client: n.client}
	if cfg.Joins() {
		join := oneShot(component.UnitJoin, joiner.Run)
		join.GiveUpAfter = 1 // it retries temporary errors itself
		units = append(units, join)
	} else {
		addons := &clusterAddons{env: n.env, authority: pki.CertFile(pki.ClusterCA), client: n.client, warn: n.warn, log: n.log, hub: n.hub}
		keep := task(component.UnitAddons, addons.Run, apiserver.Name)
		keep.Essential, keep.GiveUpAfter = true, cfg.Restart.GiveUpAfter
		if former := (&formerNodes{data: n.data, log: n.log, client: n.client}); former.any() {
			u := oneShot(unitFormerNodes, former.Run, component.UnitRegistered)
			u.Essential, u.GiveUpAfter = false, 0
			units = append(units, u)
		}
		units = append(units, oneShot(component.UnitRoles, addons.waitRoles, apiserver.Name), keep)
	}
	units = append(units, n.podNetwork(oneShot)...)
	if cfg.Serves() {
		approver := &approver{env: n.env, log: n.log, client: n.client, claims: map[string]string{}}
		units = append(units, task(unitApprover, approver.Run, component.UnitRoles))
	}
	if cfg.MultiNode() {
		address := &addressFollower{
			cfg: cfg, components: n.components, address: n.address, log: n.log, hub: n.hub, warn: n.warn, node: object, forward: n.ports.update,
			restart: func(unit string) error { return n.group.Restart(unit) }, kubeconfig: joiner.hostKubeconfig,
			published: n.address.current(), warned: n.address.current(), // the Node object gets the address before the kubelet starts
		}
		units = append(units, task(unitAddress, address.Run, component.UnitRegistered))
	}
	if n.runtime.HasImageStore() || n.runtime.ImportCommand("", "") != nil {
		images := oneShot(unitImages, newImageImporter(n).Run, n.runtime.Unit())
		images.Essential, images.GiveUpAfter = false, 0
		units = append(units, images)
	}
	if n.hostAccess != nil {
		units = append(units, task(unitHostAccess, n.hostAccess.Run))
	}
	if len(cfg.HostPorts()) > 0 {
		units = append(units, task(unitHostPorts, func(ctx context.Context, ready func()) error { return relayHostPorts(ctx, cfg, n.rt, n.log, ready) }))
	}
	return units
}

// podNetwork returns the unit that writes the CNI configuration. Policies must be enforced before pods get a network.
func (n *nodeRole) podNetwork(oneShot func(string, func(context.Context) error, ...string) supervisor.Unit) []supervisor.Unit {
	var write func(context.Context, component.Env) error
	var needed []string
	for _, c := range n.components {
		if c.PodNetwork != nil {
			write = c.PodNetwork
		}
		if c.PodNetwork != nil || c.FiltersPackets {
			needed = append(needed, c.Name)
		}
	}
	if write == nil {
		return nil
	}
	return []supervisor.Unit{oneShot(unitCNI, func(ctx context.Context) error { return write(ctx, n.env) }, needed...)}
}
