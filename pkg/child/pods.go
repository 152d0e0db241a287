package child

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/podstop"
	"github.com/rootlessnode/rootlessnode/pkg/component/apiserver"
	"github.com/rootlessnode/rootlessnode/pkg/component/flannel"
	"github.com/rootlessnode/rootlessnode/pkg/component/kubelet"
	"github.com/rootlessnode/rootlessnode/pkg/component/networkpolicy"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/status"
	"github.com/rootlessnode/rootlessnode/pkg/supervisor"
)

// kubepods is the cgroup below which the kubelet keeps all pods.
const kubepods = "kubepods"

// unitPods is the unit that does nothing but stop the pods.
const unitPods = "pods"

// outlivesPods names the units that a pod may use while it stops, from its preStop hook or from the program itself. The
// rules of kube-proxy stay when kube-proxy ends, so it is not one of them. The DNS server is itself a pod.
var outlivesPods = []string{apiserver.Name, flannel.Name, networkpolicy.Name, unitPorts, unitHostPorts}

// stopAfterPods orders the stop of the units that outlive the pods.
func stopAfterPods(units []supervisor.Unit) {
	for i := range units {
		for _, name := range outlivesPods {
			if units[i].Name == name {
				units[i].StopAfter = append(units[i].StopAfter, unitPods)
			}
		}
	}
}

// podsUnit stops the pods when the node stops: after the kubelet, so that no container is started again, and before the
// runtime and the units of outlivesPods.
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
	// viewLimit is how long the API server may take to return the node's pods.
	viewLimit = 3 * time.Second
	// criticalReserve is the part of timeouts.podStop that is kept for critical pods, at most a quarter of it.
	criticalReserve = 10 * time.Second
	// fallbackReserve is the part of timeouts.podStop that is kept for a stop without the runtime, at most a fifth of it.
	fallbackReserve = 2 * time.Second
)

// stopPods ends the pods within timeouts.podStop. The runtime stops them as the kubelet would have it do. Where the runtime
// does not, every process of every pod gets TERM, and KILL after the longest of their grace periods.
func (n *nodeRole) stopPods(ctx context.Context) error {
	if !populated(filepath.Join(layout.InsideCgroup, kubepods)) {
		return nil
	}
	n.log.Info("stopping the pods")
	limit, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.PodStop.D())
	defer cancel()
	pods, err := n.nodePods(limit)
	if err != nil {
		n.log.WithError(err).Warn("the order of the pods is not known, stopping those of kube-system last")
	}
	grace := programGrace // for what is not the kubelet's
	if err := n.stopContainers(limit, pods, err == nil); err != nil {
		n.log.WithError(err).Warn("the container runtime did not stop all pods, stopping their processes")
		n.showPods("stopping the processes of the pods, because the container runtime did not stop them")
		grace = longestGrace(pods, n.cfg.Timeouts.PodStop.D())
	}
	rest, cancelRest := context.WithTimeout(limit, grace)
	defer cancelRest()
	n.endPrograms(rest, kubepods)
	return n.tree.Kill(kubepods)
}

// longestGrace is the longest grace period of the pods, or the given one if no pod is known.
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

// stopContainers has the runtime stop the containers of all pods.
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
			n.showPods(shortList(r.Waiting))
		}
		if r.Interrupted != nil {
			n.runAgain(ctx, pods, *r.Interrupted)
		}
	})
}

// runAgain has the kubelet start the containers of a pod again that the stop interrupted, and that have no restart policy
// for that. A container that the Pod object has as running, and of which the runtime has nothing, counts as failed.
func (n *nodeRole) runAgain(ctx context.Context, pods []kubeapi.NodePod, p podstop.Interrupted) {
	i := slices.IndexFunc(pods, func(k kubeapi.NodePod) bool { return k.UID == p.UID })
	if i < 0 || pods[i].Static {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, viewLimit)
	defer cancel()
	c, err := n.client()
	if err == nil {
		err = c.MarkContainersWaiting(ctx, pods[i], p.Containers, "NodeStopped", "the node was stopped, the container starts again with it")
	}
	if err != nil {
		n.log.WithError(err).Warn("mark an interrupted pod: it counts as failed at the next start")
	}
}

// nodePods returns what the API server has about the node's pods.
func (n *nodeRole) nodePods(ctx context.Context) ([]kubeapi.NodePod, error) {
	ctx, cancel := context.WithTimeout(ctx, viewLimit)
	defer cancel()
	c, err := n.client()
	if err != nil {
		return nil, err
	}
	return c.NodePods(ctx, n.cfg.NodeName)
}

// criticalPriority is the least priority of critical pods, as for the graceful node shutdown of the kubelet: that of the
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

// shownPods is how many containers the status names of those that a stop waits for.
const shownPods = 5

// shortList joins texts, and counts those that are too many to be shown.
func shortList(texts []string) string {
	if more := len(texts) - shownPods; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:shownPods], ", "), more)
	}
	return strings.Join(texts, ", ")
}

// podsView is what the stop of the pods waits for. Its lock orders the transition of the unit and the texts.
type podsView struct {
	sync.Mutex
	text string
}

// showPods shows in the status what the stop of the pods waits for.
func (n *nodeRole) showPods(text string) {
	n.pods.Lock()
	defer n.pods.Unlock()
	n.pods.text = text
	n.hub.Update(func(s *status.Status) {
		if c := s.Component(unitPods); c != nil && c.State == status.Stopping {
			c.Reason = text
		}
	})
}

// leftovers removes what the supervisor left on purpose: the pods, the runtime's shims, containers that are not the
// kubelet's, programs of `rootlessnode exec`. Containers and programs get TERM first. The cgroups of pods go too:
// those made inside a pod with a user namespace of its own belong to a subordinate id, which nobody outside may remove.
func (n *nodeRole) leftovers() {
	ctx, cancel := context.WithTimeout(context.Background(), programGrace)
	defer cancel()
	n.endPrograms(ctx, leaf("exec"), strings.TrimPrefix(n.runtimeCgroup(), "/"))
	for _, name := range []string{kubepods, leaf("exec"), leaf(n.runtimeUnit())} {
		if err := n.tree.Remove(name); err != nil {
			n.log.WithError(err).Warn("remove what is left")
		}
	}
}

// programGrace is the time between TERM and KILL for programs of `rootlessnode exec`. It is short because every interactive
// shell ignores TERM.
const programGrace = 3 * time.Second

// endPrograms sends TERM to the processes in the cgroups and waits until they have ended or ctx ends.
func (n *nodeRole) endPrograms(ctx context.Context, names ...string) {
	for _, name := range names {
		if err := n.tree.Signal(name, unix.SIGTERM); err != nil {
			n.log.WithError(err).Warn("stop programs")
		}
	}
	for _, name := range names {
		if err := n.tree.WaitEmpty(ctx, name); err != nil {
			n.log.WithError(err).Warn("programs did not end in time, killing them")
		}
	}
}

// populated reports whether a process is in the cgroup or below (cgroup.events, cgroup-v2.rst).
func populated(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	return err == nil && strings.Contains(string(b), "populated 1")
}
