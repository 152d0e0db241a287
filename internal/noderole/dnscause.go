package noderole

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/rootlessnode/rootlessnode/internal/component/coredns"
	"github.com/rootlessnode/rootlessnode/internal/component/kubeproxy"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// Reasons of a false ClusterDNS condition, and of a warning (reasonPods).
const (
	reasonNoService    = "ServiceNotFound"
	reasonAddress      = "WrongServiceAddress"
	reasonNoDeployment = "DeploymentNotFound"
	reasonNoReplicas   = "NoReplicas"
	reasonNoPods       = "NoPods"
	reasonPods         = "PodsNotReady"
	reasonNode         = "NodeNotReady"
	reasonNoAnswer     = "NoAnswer"
)

// dnsDiagnoser finds the cause of a failed query.
type dnsDiagnoser struct {
	watch  *dnsWatch
	client *kubeapi.Client
	worked bool // a query has succeeded

	mu   sync.Mutex
	pods []*corev1.Pod // of an own DNS, sorted by name
}

func (d *dnsDiagnoser) setPods(pods []*corev1.Pod) {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods = pods
}

func (d *dnsDiagnoser) knownPods() []*corev1.Pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pods
}

// working returns the condition after a successful query. A pod that cannot start is a warning: most likely it has a new
// configuration that is invalid, while the other pods have the old one.
func (d *dnsDiagnoser) working() status.Condition {
	d.worked = true
	for _, p := range d.knownPods() {
		if text, broken := podProblem(p); broken {
			return status.Condition{
				OK: true, Warning: true, Reason: reasonPods, Steps: podHint(p),
				Message: "names are resolved, but a pod of the DNS does not start: " + text,
			}
		}
	}
	return status.Condition{OK: true, Message: d.watch.name + " resolves"}
}

// cause returns the condition after a failed query. failure is its error.
func (d *dnsDiagnoser) cause(ctx context.Context, failure error) status.Condition {
	c := d.service(ctx)
	if c.Reason == "" && d.watch.own {
		c = d.workload(ctx)
	}
	if c.Reason == "" {
		c.Reason, c.Message = reasonNoAnswer, fmt.Sprintf("%s does not resolve: %v", d.watch.name, failure)
		c.Steps = errdefs.Do(errdefs.ShowLogs, kubeproxy.Name)
		if d.watch.own {
			c.Steps = kubectl("logs", "deployment/"+coredns.Deployment).Do(errdefs.ShowLogs, kubeproxy.Name)
		}
	}
	return c
}

// service checks the Service of the DNS. The result has no Reason if the Service is as expected or cannot be read.
func (d *dnsDiagnoser) service(ctx context.Context) (c status.Condition) {
	address := d.watch.address.String()
	if !d.watch.own {
		if s, err := d.client.ServiceAt(ctx, address); err == nil && s == nil {
			c.Reason, c.Message = reasonNoService, "no Service of the cluster has the address "+address
		}
		return c
	}
	s, err := d.client.Service(ctx, coredns.Namespace, coredns.Service)
	name := "the Service " + coredns.Namespace + "/" + coredns.Service
	switch {
	case err != nil:
	case s == nil:
		c.Reason, c.Message, c.Steps = reasonNoService, name+" does not exist", errdefs.Do(errdefs.ShowLogs, nodeLog)
	case s.Spec.ClusterIP != address:
		c.Reason, c.Message = reasonAddress, fmt.Sprintf("%s has the address %s, but pods use %s", name, s.Spec.ClusterIP, address)
		c.Steps = kubectl("delete", "service", coredns.Service).Note("the node creates it again")
	}
	return c
}

// nodeLog is the log of the node role.
const nodeLog = "node"

// workload checks the pods of an own DNS. The result has no Reason if a pod is ready.
func (d *dnsDiagnoser) workload(ctx context.Context) (c status.Condition) {
	pods := d.knownPods()
	if len(pods) == 0 {
		return d.deployment(ctx)
	}
	for _, p := range pods {
		text, _ := podProblem(p)
		reason := reasonPods
		if text == "" {
			if text = d.node(ctx, p); text == "" {
				return status.Condition{} // this pod should answer
			}
			reason = reasonNode
		}
		if c.Reason == "" {
			c = status.Condition{Reason: reason, Message: text, Steps: podHint(p)}
		}
	}
	return c
}

func (d *dnsDiagnoser) deployment(ctx context.Context) (c status.Condition) {
	name := "the Deployment " + coredns.Namespace + "/" + coredns.Deployment
	o, err := d.client.Deployment(ctx, coredns.Namespace, coredns.Deployment)
	switch {
	case err != nil:
	case o == nil:
		c.Reason, c.Message, c.Steps = reasonNoDeployment, name+" does not exist", errdefs.Do(errdefs.ShowLogs, nodeLog)
	case o.Spec.Replicas == 0:
		c.Reason, c.Message = reasonNoReplicas, name+" has 0 replicas"
		c.Steps = kubectl("scale", "deployment", coredns.Deployment, "--replicas", "1")
	default:
		c.Reason, c.Message = reasonNoPods, name+" has no pods"
		if failure := o.Failure(); failure != "" {
			c.Message += ": " + failure
		}
		c.Steps = kubectl("describe", "deployment", coredns.Deployment)
	}
	return c
}

// node returns why the Node of a pod cannot run it, or "".
func (d *dnsDiagnoser) node(ctx context.Context, p *corev1.Pod) string {
	n, err := d.client.Node(ctx, p.Spec.NodeName)
	if err != nil {
		return ""
	}
	if n == nil {
		return fmt.Sprintf("pod %s is on node %s, which does not exist", p.Name, p.Spec.NodeName)
	}
	if ready, reason := kubeapi.NodeReady(n); !ready {
		return fmt.Sprintf("pod %s is on node %s, which is not ready: %s", p.Name, p.Spec.NodeName, reason)
	}
	return ""
}

// podProblem returns why a pod is not ready, or "". broken reports that a container fails, so that the pod most likely does
// not become ready by itself.
func podProblem(p *corev1.Pod) (text string, broken bool) {
	if p.DeletionTimestamp != nil {
		return fmt.Sprintf("pod %s is being deleted", p.Name), false
	}
	var conditions []string
	for _, c := range p.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			return "", false
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse, c.Type == corev1.PodReady:
			conditions = append(conditions, cmp.Or(c.Message, c.Reason))
		}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if text, broken := containerProblem(c); text != "" {
			return fmt.Sprintf("pod %s: container %s: %s", p.Name, c.Name, text), broken
		}
	}
	conditions = slices.DeleteFunc(append(conditions, "not ready"), func(s string) bool { return s == "" })
	return fmt.Sprintf("pod %s: %s", p.Name, conditions[0]), false
}

// startingReasons are the reasons of a container that waits without a fault.
var startingReasons = []string{"ContainerCreating", "PodInitializing"}

// containerProblem returns why a container is not ready, with the end of its log if it failed, or "" if that is not known.
func containerProblem(c corev1.ContainerStatus) (text string, broken bool) {
	var parts []string
	if w := c.State.Waiting; w != nil {
		broken = !slices.Contains(startingReasons, w.Reason)
		parts = append(parts, joined(": ", w.Reason, w.Message))
	}
	for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
		if t != nil && t.ExitCode != 0 && !c.Ready {
			broken = true
			parts = append(parts, joined(": ", fmt.Sprintf("exited with code %d", t.ExitCode), faultLine(t.Message)))
			break
		}
	}
	return strings.Join(parts, "; "), broken
}

// joined returns the parts that are not empty, separated by sep.
func joined(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), sep)
}

// faultLine returns the line of a log that most likely has the fault: the last one that mentions an error, otherwise the last one.
func faultLine(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	for _, line := range slices.Backward(lines) {
		if strings.Contains(strings.ToLower(line), "error") {
			return strings.TrimSpace(line)
		}
	}
	return strings.TrimSpace(lines[len(lines)-1])
}

// kubectl returns a hint with a command for the namespace of the DNS.
func kubectl(args ...string) errdefs.Hint {
	return errdefs.Do(errdefs.Kubectl, append([]string{"-n", coredns.Namespace}, args...)...)
}

// podHint returns the commands that show the fault of a pod of the DNS.
func podHint(p *corev1.Pod) errdefs.Hint {
	return append(kubectl("describe", "pod", p.Name), kubectl("get", "configmap", coredns.Custom, "-o", "yaml", "--ignore-not-found")...)
}
