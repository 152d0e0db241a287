package noderole

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/flannel"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/component/networkpolicy"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/podstop"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// kubepods is the parent cgroup of all pods of the kubelet.
const kubepods = "kubepods"

// unitPods is the unit that stops the pods.
const unitPods = "pods"

// outlivesPods names the units that a stopping pod may still use, from its preStop hook or its program. kube-proxy is
// not among them because its rules stay when it ends. The DNS server is a pod itself.
var outlivesPods = []string{apiserver.Name, flannel.Name, networkpolicy.Name, unitPorts, unitHostPorts}

// stopAfterPods makes the units of outlivesPods stop after the pods.
func stopAfterPods(units []supervisor.Unit) {
	for i := range units {
		for _, name := range outlivesPods {
			if units[i].Name == name {
				units[i].StopAfter = append(units[i].StopAfter, unitPods)
			}
		}
	}
}

// podsUnit stops the pods when the node stops: after the kubelet, which would restart the containers, and before the
// container runtime and the units of outlivesPods.
func (n *nodeRole) podsUnit() supervisor.Unit {
	return supervisor.Unit{
		Name: unitPods, Needs: needs(n.runtimeUnit()), StopAfter: []string{kubelet.Name}, Backoff: n.backoff(),
		Task: func(ctx context.Context, ready func()) error {
			ready()
			<-ctx.Done()
			return nil
		},
		BeforeStop: n.stopPods, BeforeStopTimeout: n.cfg.Timeouts.PodStop.D() + n.cfg.Timeouts.ComponentStop.D(),
	}
}

const (
	// apiTimeout is the time limit for requests about the node's pods to the API server.
	apiTimeout = 3 * time.Second
	// criticalReserve is the part of timeouts.podStop that is kept for critical pods, at most a quarter of it.
	criticalReserve = 10 * time.Second
	// fallbackReserve is the part of timeouts.podStop that is kept for a stop without the runtime, at most a fifth of it.
	fallbackReserve = 2 * time.Second
)

// stopPods stops the pods within timeouts.podStop. Normally the container runtime stops them, in the order and with the
// grace periods that the kubelet would use. If that fails, all processes of the pods get SIGTERM, and SIGKILL after the
// longest of their grace periods.
func (n *nodeRole) stopPods(ctx context.Context) error {
	if some, err := n.tree.Populated(kubepods); err != nil || !some {
		return err
	}
	n.log.Info("stopping the pods")
	limit, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.PodStop.D())
	defer cancel()
	pods, err := n.nodePods(limit)
	if err != nil {
		n.log.WithError(err).Warn("list the node's pods; stopping pods in kube-system last")
	}
	grace := programGrace // for containers that the kubelet did not start
	if err := n.stopContainers(limit, pods, err == nil); err != nil {
		n.log.WithError(err).Warn("the container runtime did not stop all pods; stopping their processes")
		n.setPodsReason("stopping the pods' processes, because the container runtime did not stop all pods")
		grace = longestGrace(pods, n.cfg.Timeouts.PodStop.D())
	}
	rest, cancelRest := context.WithTimeout(limit, grace)
	defer cancelRest()
	n.endPrograms(rest, kubepods)
	return n.tree.Kill(kubepods)
}

// longestGrace returns the longest grace period of the pods, or unknown if there are no pods in the list.
func longestGrace(pods []kubeapi.NodePod, unknown time.Duration) time.Duration {
	if len(pods) == 0 {
		return unknown
	}
	longest := programGrace
	for _, p := range pods {
		longest = max(longest, time.Duration(p.GraceSeconds)*time.Second)
	}
	return longest
}

// stopContainers lets the container runtime stop the containers of all pods.
func (n *nodeRole) stopContainers(ctx context.Context, pods []kubeapi.NodePod, known bool) error {
	end, _ := ctx.Deadline()
	limit := time.Until(end)
	limit -= min(fallbackReserve, limit/5)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return podstop.Run(ctx, n.binary(podstop.Program), n.environ(nil), podstop.Request{
		Socket: n.cfg.RuntimeSocket(), NodeIP: n.handover.Network.IP,
		Limit: limit, CriticalReserve: min(criticalReserve, limit/4),
		Known: known, Pods: podsToStop(pods),
	}, func(r podstop.Report) {
		if r.Warning != "" {
			n.log.Warn(r.Warning)
		}
		if r.Changed {
			n.setPodsReason(shortList(r.Waiting))
		}
		if r.Interrupted != nil {
			n.restartInterrupted(ctx, pods, *r.Interrupted)
		}
	})
}

// restartInterrupted makes the kubelet restart, at the next start of the node, the containers of a pod that the stop
// interrupted and whose restart policy would not restart them. Without this, the kubelet counts a container as failed
// if the Pod object lists it as running and the runtime does not know it.
func (n *nodeRole) restartInterrupted(ctx context.Context, pods []kubeapi.NodePod, p podstop.Interrupted) {
	i := slices.IndexFunc(pods, func(k kubeapi.NodePod) bool { return k.UID == p.UID })
	if i < 0 || pods[i].Static {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	c, err := n.client()
	if err == nil {
		err = c.MarkContainersWaiting(ctx, pods[i], p.Containers, "NodeStopped", "the node was stopped; the container starts again when the node starts")
	}
	if err != nil {
		n.log.WithError(err).Warn("mark an interrupted pod for a restart; it will count as failed at the next start")
	}
}

// nodePods returns the node's pods from the API server.
func (n *nodeRole) nodePods(ctx context.Context) ([]kubeapi.NodePod, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	c, err := n.client()
	if err != nil {
		return nil, err
	}
	return c.NodePods(ctx, n.cfg.NodeName)
}

// criticalPriority is the lowest priority of critical pods, as in the kubelet's graceful node shutdown: that of the
// PriorityClass system-cluster-critical.
const criticalPriority = 2_000_000_000

func podsToStop(list []kubeapi.NodePod) []podstop.Pod {
	pods := make([]podstop.Pod, 0, len(list))
	for _, p := range list {
		pods = append(pods, podstop.Pod{
			UID: p.UID, Critical: p.Static || p.Priority >= criticalPriority, Containers: p.Containers, Sidecars: p.Sidecars,
			RestartPolicy: p.RestartPolicy, GraceSeconds: p.DeletionGraceSeconds,
		})
	}
	return pods
}

// shownPods is the number of containers that the status names while a stop waits for them.
const shownPods = 5

// shortList joins the first texts and appends the number of the others.
func shortList(texts []string) string {
	if more := len(texts) - shownPods; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:shownPods], ", "), more)
	}
	return strings.Join(texts, ", ")
}

// podsProgress is the status text of the pods' stop. Its lock orders the unit's transition and updates of the text.
type podsProgress struct {
	sync.Mutex
	text string
}

// setPodsReason sets the reason of the pods unit in the status while the unit stops.
func (n *nodeRole) setPodsReason(text string) {
	n.pods.Lock()
	defer n.pods.Unlock()
	n.pods.text = text
	n.hub.Update(func(s *status.Status) {
		if c := s.Component(unitPods); c != nil && c.State == status.Stopping {
			c.Reason = text
		}
	})
}

// removeLeftovers removes what the supervisor keeps running: the pods, the runtime's shims, containers that the kubelet
// did not start, and programs of `rootlessnode exec`. Containers and programs get SIGTERM first. The cgroups of pods
// are removed too, because those created in a pod with a user namespace belong to a subordinate ID and cannot be
// removed from outside.
func (n *nodeRole) removeLeftovers() {
	ctx, cancel := context.WithTimeout(context.Background(), programGrace)
	defer cancel()
	n.endPrograms(ctx, leaf("exec"), strings.TrimPrefix(n.runtimeCgroup(), "/"))
	for _, name := range []string{kubepods, leaf("exec"), leaf(n.runtimeUnit())} {
		if err := n.tree.Remove(name); err != nil {
			n.log.WithError(err).Warn("remove the remaining processes and their cgroup")
		}
	}
}

// programGrace is the time between SIGTERM and SIGKILL for programs of `rootlessnode exec`. It is short because
// interactive shells ignore SIGTERM.
const programGrace = 3 * time.Second

// endPrograms sends SIGTERM to the processes in the cgroups and waits until they have exited or ctx ends.
func (n *nodeRole) endPrograms(ctx context.Context, names ...string) {
	for _, name := range names {
		if err := n.tree.Signal(name, unix.SIGTERM); err != nil {
			n.log.WithError(err).Warn("send SIGTERM to programs")
		}
	}
	for _, name := range names {
		if err := n.tree.WaitEmpty(ctx, name); err != nil {
			n.log.WithError(err).Warn("programs did not exit in time; killing them")
		}
	}
}
