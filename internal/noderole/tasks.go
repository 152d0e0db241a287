package noderole

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/component/flannel"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/component/networkpolicy"
	"github.com/rootlessnode/rootlessnode/internal/component/resources"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// tasks returns the units that run in this process.
func (n *nodeRole) tasks() []supervisor.Unit {
	oneShot := func(name string, f func(context.Context) error, needed ...string) supervisor.Unit {
		return supervisor.Unit{
			Name: name, OneShot: true, Needs: needs(needed...), Backoff: n.backoff(), GiveUpAfter: n.cfg.Restart.GiveUpAfter,
			Essential: true, Task: func(ctx context.Context, _ func()) error { return f(ctx) },
		}
	}
	ready := supervisor.Unit{
		Name: unitNode, Needs: needs(n.unitOrJoin(apiserver.Name)), Task: n.followNode, Backoff: n.backoff(),
	}
	units := []supervisor.Unit{
		oneShot(unitStaleNode, n.markNotReady, n.unitOrJoin(apiserver.Name)),
		oneShot(unitRegistered, n.waitRegistered, kubelet.Name),
		ready,
		n.portsUnit(),
		n.podsUnit(),
		n.mountsUnit(),
		n.entriesUnit(),
		{Name: unitHostPaths, Needs: needs(unitRegistered), Task: n.watchHostPaths, Backoff: n.backoff()},
	}
	if n.cfg.Joins() {
		join := oneShot(unitJoin, n.join)
		join.GiveUpAfter = 1 // it retries temporary errors itself
		units = append(units, join)
	} else {
		units = append(units, oneShot(unitRoles, n.waitRoles, apiserver.Name), oneShot(unitAddons, n.applyAddons, apiserver.Name))
	}
	if n.cfg.CNI == config.CNIFlannel {
		network := []string{flannel.Name}
		if n.cfg.EnforcesPolicies() { // policies must be enforced before pods get a network
			network = append(network, networkpolicy.Name)
		}
		units = append(units, oneShot(unitCNI, func(ctx context.Context) error { return flannel.WriteCNI(ctx, n.env) }, network...))
	}
	if n.cfg.Serves() {
		units = append(units, supervisor.Unit{Name: unitApprover, Needs: needs(unitRoles), Task: n.approveNodes, Backoff: n.backoff()})
	}
	if n.cfg.MultiNode() {
		units = append(units, supervisor.Unit{Name: unitAddress, Needs: needs(unitRegistered), Task: n.followAddress, Backoff: n.backoff()})
	}
	units = append(units, n.runtimeTasks(oneShot)...)
	if n.hostAccess != nil {
		units = append(units, supervisor.Unit{Name: unitHostAccess, Task: n.followHost, Backoff: n.backoff()})
	}
	if len(n.cfg.Network.HostPorts) > 0 {
		units = append(units, supervisor.Unit{Name: unitHostPorts, Task: n.relayHostPorts, Backoff: n.backoff()})
	}
	return units
}

// applyAddons applies the roles of rootlessnode's users and the cluster DNS. Applying unchanged manifests has no
// effect.
func (n *nodeRole) applyAddons(ctx context.Context) error {
	c, err := n.client()
	if err != nil {
		return err
	}
	manifests, err := resources.Manifests(n.env)
	if err != nil {
		return err
	}
	if n.cfg.Serves() {
		more, err := n.joinManifests()
		if err != nil {
			return err
		}
		manifests = append(manifests, more...)
	}
	return errors.Join(c.Apply(ctx, manifests), n.removeObsolete(ctx, c))
}

// removeObsolete deletes the objects that an earlier version or an earlier configuration left in the cluster.
func (n *nodeRole) removeObsolete(ctx context.Context, c *kubeapi.Client) error {
	if !n.cfg.Serves() {
		if _, err := c.Remove(ctx, resources.NodePolicy()); err != nil {
			return err
		}
	}
	removed, err := c.Remove(ctx, resources.Obsolete())
	if removed && err == nil {
		n.warn("deleted the shared tokens of earlier versions: upgrade rootlessnode on workers of earlier versions, then run `rootlessnode down` and `rootlessnode up` there")
	}
	return err
}

// waitRoles waits until the control plane's components have their roles. Before that their requests would be denied,
// and they pause for a long time after a denied request.
func (n *nodeRole) waitRoles(ctx context.Context) error {
	c, err := n.client()
	if err != nil {
		return err
	}
	var bindings []string
	for _, e := range catalogue.Enabled(n.cfg) {
		bindings = append(bindings, e.Bindings...)
	}
	return supervisor.Poll(readyPoll, "the default roles", func(ctx context.Context) error {
		return c.HasRoleBindings(ctx, bindings...)
	})(ctx)
}

// podRangesMatch reports whether each of a Node's pod ranges is part of the cluster's. A Node without pod ranges
// matches, because it will get them.
func podRangesMatch(node, cluster []string) bool {
	if len(node) == 0 {
		return true
	}
	inside := func(part, whole string) bool {
		p, err := netip.ParsePrefix(part)
		w, errWhole := netip.ParsePrefix(whole)
		return err == nil && errWhole == nil && w.Overlaps(p) && w.Bits() <= p.Bits()
	}
	return slices.EqualFunc(node, cluster, inside)
}

// markNotReady resets the Node object's readiness from the last run before the kubelet sees it. A Node object with pod
// ranges of another configuration is deleted.
func (n *nodeRole) markNotReady(ctx context.Context) error {
	c, err := n.client()
	if err != nil {
		return err
	}
	if n.cfg.Joins() {
		return n.ensureNode(ctx, c)
	}
	// A Node's pod ranges cannot be changed, and pods cannot get addresses from the ranges of another configuration.
	removed, err := c.RemoveNode(ctx, n.cfg.NodeName, func(node *corev1.Node) bool { return !podRangesMatch(node.Spec.PodCIDRs, n.cfg.PodCIDRs()) })
	if removed {
		n.log.Infof("deleted the Node object, because its pod ranges are outside %v", n.cfg.PodCIDRs())
	}
	if err != nil {
		return err
	}
	if n.cfg.MultiNode() {
		return n.ensureNode(ctx, c)
	}
	if removed {
		return nil
	}
	return n.markStarting(ctx, c)
}

func (n *nodeRole) markStarting(ctx context.Context, c *kubeapi.Client) error {
	return c.MarkNodeNotReady(ctx, n.cfg.NodeName, "NodeStarting", "the node is starting")
}

// waitRegistered waits until the kubelet has registered the Node and the controller manager has assigned a pod CIDR,
// which flannel needs. It does not wait for the Node to be Ready, which requires flannel.
func (n *nodeRole) waitRegistered(ctx context.Context) error {
	c, err := n.client()
	if err != nil {
		return err
	}
	node, err := c.WaitNode(ctx, n.cfg.NodeName, func(node *corev1.Node) bool { return node.Spec.PodCIDR != "" })
	if err != nil {
		return err
	}
	n.recordUnenforced()
	return errors.Join(n.recordNodeUID(node), n.label(ctx, c, node))
}

// label updates rootlessnode's labels. The kubelet sets its --node-labels only when it registers the Node for the first
// time.
func (n *nodeRole) label(ctx context.Context, c *kubeapi.Client, node *corev1.Node) error {
	want := kubelet.Labels(n.env)
	set := map[string]string{}
	for k, v := range want {
		if node.Labels[k] != v {
			set[k] = v
		}
	}
	var remove []string
	if _, has := node.Labels[kubelet.LabelUnenforced]; has && want[kubelet.LabelUnenforced] == "" {
		remove = append(remove, kubelet.LabelUnenforced)
	}
	return c.PatchNodeLabels(ctx, n.cfg.NodeName, set, remove)
}

// followNode copies the Node object's Ready condition to the status. It is ready when the Node is.
func (n *nodeRole) followNode(ctx context.Context, ready func()) error {
	c, err := n.client()
	if err != nil {
		return err
	}
	return c.WatchNode(ctx, n.cfg.NodeName, func(node *corev1.Node) {
		ok, reason := kubeapi.NodeReady(node)
		if node.UID == "" {
			reason = "the Node object does not exist"
		}
		if ok && !reportedSince(node, n.handover.StartedAt) {
			ok, reason = false, "the kubelet has not updated the Node object since the node started"
		}
		if ok {
			reason = ""
		}
		n.hub.SetCondition(status.Condition{Type: status.ConditionNodeReady, OK: ok, Message: reason})
		if ok {
			ready()
		} else {
			supervisor.Progress(ctx, "%s", reason)
		}
	})
}

// reportedSince reports whether the kubelet has reported readiness since start, the beginning of this run. The Node
// object keeps its condition while the node is stopped. The API's times are in whole seconds.
func reportedSince(node *corev1.Node, start time.Time) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && !c.LastHeartbeatTime.Time.Before(start.Truncate(time.Second))
	})
}

// importImages imports the bundled images (pause, CoreDNS) into the runtime, unless it has them.
func (n *nodeRole) importImages(ctx context.Context) error {
	m, err := preflight.ReadManifest(n.cfg.ComponentsDir)
	if err != nil {
		return err
	}
	have, load, err := n.imageStore(ctx)
	if err != nil || load == nil {
		return err
	}
	imported := map[string]string{} // image name -> digest of the archive it came from
	if err := layout.ReadJSON(n.data.ImportedImages(), &imported); err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.log.WithError(err).Warn("cannot read the record of imported images; importing them again")
	}
	for _, image := range m.Images {
		if slices.Contains(have, image.Name) && imported[image.Name] == image.SHA256 {
			continue
		}
		supervisor.Progress(ctx, "importing %s", image.Name)
		if err := load(ctx, image.Name, filepath.Join(n.cfg.ComponentsDir, image.Path)); err != nil {
			return err
		}
		imported[image.Name] = image.SHA256
	}
	return layout.WriteJSON(n.data.ImportedImages(), imported)
}

// ctr runs containerd's client ctr.
func (n *nodeRole) ctr(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--address", layout.InsideContainerdSock, "--namespace", containerdNamespace}, args...)
	return n.runtimeClient(ctx, n.binary("ctr"), args...)
}

// kubernetesVersion returns the version of the bundled kubelet, or "" if the manifest does not contain it.
func kubernetesVersion(componentsDir string) string {
	m, err := preflight.ReadManifest(componentsDir)
	if err != nil {
		return ""
	}
	for _, c := range m.Components {
		if c.Name == kubelet.Name {
			return c.Version
		}
	}
	return ""
}

// supportsStorageStats reports whether the kubelet can account for local storage below dir. On btrfs and FUSE the
// statistics come from devices that are not visible in a user namespace, and the kubelet does not start (KEP-2033).
func supportsStorageStats(dir string) bool {
	return !slices.Contains(opaqueFileSystems(), fileSystemType(dir))
}

// opaqueFileSystems returns the types of file systems whose usage the kubelet's cAdvisor cannot attribute from inside a
// user namespace.
func opaqueFileSystems() []int64 { return []int64{unix.BTRFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC} }

// fileSystemType returns f_type of statfs(2), or 0 on error.
func fileSystemType(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0
	}
	return int64(st.Type) //nolint:unconvert // the field's type depends on the architecture
}
