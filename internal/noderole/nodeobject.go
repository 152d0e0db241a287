package noderole

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/flannel"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/membership"
)

// nodeObject writes the parts of the node's Node object that the kubelet does not write.
type nodeObject struct {
	env     component.Env
	data    layout.Data
	log     logrus.FieldLogger
	client  clientFunc
	address *nodeAddress
}

// addresses returns the addresses for the Node object.
func (o *nodeObject) addresses() []corev1.NodeAddress {
	return []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: o.address.current().String()},
		{Type: corev1.NodeHostName, Address: o.env.Config.NodeName},
	}
}

// annotations returns the annotations that flannel reads when it starts.
func (o *nodeObject) annotations() map[string]string {
	return map[string]string{flannel.AnnotationPublicIP: o.address.current().String()}
}

// publish writes the node's addresses and annotations to its Node object.
func (o *nodeObject) publish(ctx context.Context) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	name := o.env.Config.NodeName
	return errors.Join(
		c.SetNodeAddresses(ctx, name, o.addresses()),
		c.PatchNodeAnnotations(ctx, name, o.annotations()),
	)
}

// Reason and message of a node, and of its pods, whose kubelet of this run has not reported yet.
const (
	reasonStarting  = "NodeStarting"
	messageStarting = "the node is starting"
)

// reset resets the status that the Node object and the node's pods have from the last run, before the kubelet sees it. A
// Node object with pod ranges of another configuration is deleted.
func (o *nodeObject) reset(ctx context.Context) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	if err := o.resetPods(ctx, c); err != nil {
		return err
	}
	cfg := o.env.Config
	if cfg.Joins() {
		return o.ensure(ctx, c)
	}
	// A Node's pod ranges cannot be changed, and pods cannot get addresses from the ranges of another configuration.
	removed, err := c.RemoveNode(ctx, cfg.NodeName, func(node *corev1.Node) bool { return !podRangesMatch(node.Spec.PodCIDRs, cfg.PodCIDRs()) })
	if removed {
		o.log.Infof("deleted the Node object, because its pod ranges are outside %v", cfg.PodCIDRs())
	}
	if err != nil {
		return err
	}
	if cfg.MultiNode() {
		return o.ensure(ctx, c)
	}
	if removed {
		return nil
	}
	return o.markStarting(ctx, c)
}

func (o *nodeObject) markStarting(ctx context.Context, c *kubeapi.Client) error {
	return c.MarkNodeNotReady(ctx, o.env.Config.NodeName, reasonStarting, messageStarting)
}

// endpointsLimit bounds the time for which a worker waits until its cluster has removed the endpoints of the last run.
const endpointsLimit = 10 * time.Second

// resetPods removes the addresses of the last run's pods from the API. Otherwise kube-proxy and the forwarded ports would
// use them until the kubelet has reported all pods. Units that use endpoints wait for component.UnitStaleNode.
func (o *nodeObject) resetPods(ctx context.Context, c *kubeapi.Client) error {
	cfg := o.env.Config
	pods, err := c.ResetPods(ctx, cfg.NodeName, reasonStarting, messageStarting)
	if err != nil || len(pods) == 0 {
		return err
	}
	if !cfg.Joins() {
		return c.RemoveEndpoints(ctx, pods)
	}
	removed, err := c.WaitEndpointsRemoved(ctx, pods, endpointsLimit)
	if err == nil && !removed {
		o.log.Warnf("the cluster has not removed the endpoints of this node's last run within %s", endpointsLimit)
	}
	return err
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

// ensure creates the Node object, with the address at which other nodes reach this one, before the kubelet looks for
// it. The kubelet would create it with a taint that a cloud controller removes, and nodes may not remove it themselves
// (NodeRestriction).
func (o *nodeObject) ensure(ctx context.Context, c *kubeapi.Client) error {
	made, err := c.EnsureNode(ctx, &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: o.env.Config.NodeName, Labels: kubelet.Labels(o.env), Annotations: o.annotations()},
		Status:     corev1.NodeStatus{Addresses: o.addresses()},
	})
	if err != nil || made {
		return err
	}
	return errors.Join(o.publish(ctx), o.markStarting(ctx, c))
}

// waitRegistered waits until the kubelet has registered the Node and the controller manager has assigned a pod CIDR,
// which flannel needs. It does not wait for the Node to be Ready, which requires flannel.
func (o *nodeObject) waitRegistered(ctx context.Context) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	node, err := c.WaitNode(ctx, o.env.Config.NodeName, func(node *corev1.Node) bool { return node.Spec.PodCIDR != "" })
	if err != nil {
		return err
	}
	return errors.Join(o.recordUID(node), o.label(ctx, c, node))
}

// recordUID stores the UID of the worker's Node object, so that a later run can detect that the object was deleted.
func (o *nodeObject) recordUID(node *corev1.Node) error {
	if !o.env.Config.Joins() {
		return nil
	}
	r, err := membership.Load(o.data)
	if err != nil || r == nil || r.NodeUID == string(node.UID) {
		return err
	}
	r.NodeUID = string(node.UID)
	return r.Save(o.data)
}

// Roles of nodes, which kubectl shows.
const (
	roleControlPlane = "node-role.kubernetes.io/control-plane"
	roleWorker       = "node-role.kubernetes.io/worker"
)

// missingRoles returns those of the roles that are not in labels.
func missingRoles(labels map[string]string, roles ...string) map[string]string {
	missing := map[string]string{}
	for _, role := range roles {
		if _, has := labels[role]; !has {
			missing[role] = ""
		}
	}
	return missing
}

// label updates rootlessnode's labels. The kubelet sets its --node-labels only when it registers the Node for the first
// time.
func (o *nodeObject) label(ctx context.Context, c *kubeapi.Client, node *corev1.Node) error {
	want := kubelet.Labels(o.env)
	set := map[string]string{}
	if !o.env.Config.Joins() { // a node must not set its own roles (NodeRestriction), but this is the control plane
		set = missingRoles(node.Labels, roleControlPlane, roleWorker)
	}
	for k, v := range want {
		if node.Labels[k] != v {
			set[k] = v
		}
	}
	var remove []string
	if _, has := node.Labels[kubelet.LabelUnenforced]; has && want[kubelet.LabelUnenforced] == "" {
		remove = append(remove, kubelet.LabelUnenforced)
	}
	return c.PatchNodeLabels(ctx, o.env.Config.NodeName, set, remove)
}
