package child

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/component/apiserver"
	"github.com/rootlessnode/rootlessnode/pkg/component/flannel"
	"github.com/rootlessnode/rootlessnode/pkg/component/kubelet"
	"github.com/rootlessnode/rootlessnode/pkg/component/networkpolicy"
	"github.com/rootlessnode/rootlessnode/pkg/component/pki"
	"github.com/rootlessnode/rootlessnode/pkg/component/resources"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/status"
	"github.com/rootlessnode/rootlessnode/pkg/supervisor"
)

// tasks are the steps between the components that are done in this process.
func (n *nodeRole) tasks() []supervisor.Unit {
	oneShot := func(name string, f func(context.Context) error, needed ...string) supervisor.Unit {
		return supervisor.Unit{
			Name: name, OneShot: true, Needs: needs(needed...), Backoff: n.backoff(), GiveUpAfter: n.cfg.Restart.GiveUpAfter,
			Essential: true, Task: func(ctx context.Context, _ func()) error { return f(ctx) },
		}
	}
	ready := supervisor.Unit{
		Name: unitNode, Needs: needs(n.unitOf(apiserver.Name)), Task: n.followNode, Backoff: n.backoff(),
	}
	units := []supervisor.Unit{
		oneShot(unitStaleNode, n.markStale, n.unitOf(apiserver.Name)),
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
		join.GiveUpAfter = 1 // it tries again by itself what may be tried again
		units = append(units, join)
	} else {
		units = append(units, oneShot(unitRoles, n.waitRoles, apiserver.Name), oneShot(unitAddons, n.applyAddons, apiserver.Name))
	}
	if n.cfg.CNI == config.CNIFlannel {
		network := []string{flannel.Name}
		if n.cfg.EnforcesPolicies() { // no pod gets a network before its policies hold
			network = append(network, networkpolicy.Name)
		}
		units = append(units, oneShot(unitCNI, n.writeCNI, network...))
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

// applyAddons brings the roles of our users and the cluster DNS into the cluster. Applying what is there changes
// nothing.
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

// removeObsolete deletes what a former version, or a former configuration, left in the cluster.
func (n *nodeRole) removeObsolete(ctx context.Context, c *kubeapi.Client) error {
	if !n.cfg.Serves() {
		if _, err := c.Remove(ctx, resources.NodePolicy()); err != nil {
			return err
		}
	}
	removed, err := c.Remove(ctx, resources.Obsolete())
	if removed && err == nil {
		n.warn("the tokens that workers of former versions share are deleted: such a worker needs this version of rootlessnode, and then `down` and `up`")
	}
	return err
}

// waitRoles waits until the control plane's own users may do their work. Before that they could only be refused, and they
// answer refusals with long pauses.
func (n *nodeRole) waitRoles(ctx context.Context) error {
	c, err := n.client()
	if err != nil {
		return err
	}
	return supervisor.Poll(readyPoll, "the default roles", func(ctx context.Context) error {
		return c.HasRoleBindings(ctx, pki.UserControllerManager, pki.UserScheduler, "system:node-proxier")
	})(ctx)
}

// rangesFit tells whether a Node has a part of each of the cluster's pod ranges. One that has none yet will get it.
func rangesFit(node, cluster []string) bool {
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

// markStale takes back the readiness that the Node object has from the last run, before the kubelet sees it. One that was
// made under other pod ranges goes.
func (n *nodeRole) markStale(ctx context.Context) error {
	c, err := n.client()
	if err != nil {
		return err
	}
	if n.cfg.Joins() {
		return n.ensureNode(ctx, c)
	}
	// Its pod ranges cannot be changed, and nothing would get an address out of those of another config.
	removed, err := c.RemoveNode(ctx, n.cfg.NodeName, func(node *corev1.Node) bool { return !rangesFit(node.Spec.PodCIDRs, n.cfg.PodCIDRs()) })
	if removed {
		n.log.Infof("the Node object had pod ranges outside %v, and is made anew", n.cfg.PodCIDRs())
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
	return c.MarkNodeNotReady(ctx, n.cfg.NodeName, "NodeStarting", "the node is being started")
}

// waitRegistered waits until the kubelet has registered the Node and the controller manager has given it a pod CIDR.
// flannel needs that, and no more: the Node becomes Ready only after flannel.
func (n *nodeRole) waitRegistered(ctx context.Context) error {
	c, err := n.client()
	if err != nil {
		return err
	}
	node, err := c.WaitNode(ctx, n.cfg.NodeName, func(node *corev1.Node) bool { return node.Spec.PodCIDR != "" })
	if err != nil {
		return err
	}
	n.tellUnenforced()
	return errors.Join(n.remember(node), n.label(ctx, c, node))
}

// label keeps our labels true. The kubelet sets its --node-labels only when it registers the Node for the first time.
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

// followNode mirrors the Node object's Ready condition. It is ready when the Node is.
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
		if ok && !heardSince(node, n.handover.StartedAt) {
			ok, reason = false, "the kubelet has not reported yet; the Node object is that of the last run"
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

// heardSince tells whether the kubelet has reported readiness since start, the beginning of this run: the Node object
// outlives a stop, with the condition that it had. The API's times are whole seconds.
func heardSince(node *corev1.Node, start time.Time) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && !c.LastHeartbeatTime.Time.Before(start.Truncate(time.Second))
	})
}

// writeCNI writes the CNI configuration from what flannel leased. The kubelet reports Ready after that.
func (n *nodeRole) writeCNI(ctx context.Context) error {
	b, err := waitFile(ctx, layout.InsideFlannelEnv)
	if err != nil {
		return err
	}
	lease, err := flannel.ParseSubnetEnv(b)
	if err != nil {
		return err
	}
	file, err := flannel.RenderCNI(n.env, lease)
	if err != nil {
		return err
	}
	return component.Write([]component.File{file})
}

// waitFile reads a file as soon as it exists. The writer renames it into place, so it is whole when it is seen.
func waitFile(ctx context.Context, path string) ([]byte, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch for %s: %w", path, err)
	}
	defer func() { _ = w.Close() }() // nothing was written
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := w.Add(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("watch for %s: %w", path, err)
	}
	for {
		b, err := os.ReadFile(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return b, err
		}
		supervisor.Progress(ctx, "waiting for %s", path)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s: %w", path, ctx.Err())
		case <-w.Events:
		case err := <-w.Errors:
			return nil, fmt.Errorf("watch for %s: %w", path, err)
		}
	}
}

// importImages brings the node's own images (pause, CoreDNS) into the runtime, unless it has them.
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
		n.log.WithError(err).Warn("the record of imported images is not readable, importing again")
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

// ctr runs containerd's own client.
func (n *nodeRole) ctr(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--address", layout.InsideContainerdSock, "--namespace", containerdNamespace}, args...)
	return n.runtimeClient(ctx, n.binary("ctr"), args...)
}

// kubernetesVersion is the version of the kubelet beside us; empty when the manifest does not say.
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

// statisticsWork tells whether the kubelet can account for local storage below dir. On btrfs and FUSE its statistics
// come from devices that a user namespace does not see, and the kubelet does not start (facts of KEP-2033).
func statisticsWork(dir string) bool {
	return !slices.Contains(opaqueFileSystems(), fileSystemType(dir))
}
