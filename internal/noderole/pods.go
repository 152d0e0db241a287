package noderole

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// kubepods is the parent cgroup of all pods of the kubelet.
const kubepods = "kubepods"

// unitPods is the unit that stops the pods.
const unitPods = "pods"

// podStopper reports the return of the last run's pods, and stops the pods when the node stops: after the kubelet, which would restart the containers, and before the
// container runtime and the units that pods may use.
type podStopper struct {
	programs

	cfg      *config.NodeConfig
	nodeIP   string
	log      logrus.FieldLogger
	tree     cgroupv2.Tree
	client   clientFunc
	progress *podsProgress
	returned *podReturn
	// limit is nodeRole.podLimit.
	limit *atomic.Int64
}

// unit returns the unit of the stop, which needs the unit of the container runtime.
func (p *podStopper) unit(runtimeUnit string, backoff supervisor.Backoff) supervisor.Unit {
	return supervisor.Unit{
		Name: unitPods, Needs: component.NeedReady(runtimeUnit), StopAfter: []string{kubelet.Name}, Backoff: backoff,
		Task: func(ctx context.Context, ready func()) error {
			ready()
			p.returned.Run(ctx)
			<-ctx.Done()
			return nil
		},
		BeforeStop: p.stop, BeforeStopTimeout: p.cfg.Timeouts.PodStop.D() + p.cfg.Timeouts.ComponentStop.D(),
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

// stop stops the pods within timeouts.podStop. Normally the container runtime stops them, in the order and with the
// grace periods that the kubelet would use. If that fails, all processes of the pods get SIGTERM, and SIGKILL after the
// longest of their grace periods.
func (p *podStopper) stop(ctx context.Context) error {
	if some, err := p.tree.Populated(kubepods); err != nil || !some {
		return err
	}
	p.log.Info("stopping the pods")
	limit, cancel := context.WithTimeout(ctx, p.stopLimit())
	defer cancel()
	pods, err := p.nodePods(limit)
	if err != nil {
		p.log.WithError(err).Warn("list the node's pods; stopping pods in kube-system last")
	}
	grace := programGrace // for containers that the kubelet did not start
	if err := p.stopContainers(limit, pods, err == nil); err != nil {
		p.log.WithError(err).Warn("the container runtime did not stop all pods; stopping their processes")
		p.progress.set("stopping the pods' processes, because the container runtime did not stop all pods")
		grace = longestGrace(pods, p.stopLimit())
	}
	rest, cancelRest := context.WithTimeout(limit, grace)
	defer cancelRest()
	endPrograms(rest, p.tree, p.log, kubepods)
	return p.tree.Kill(kubepods)
}

// stopLimit returns the time that all pods together have for their stop.
func (p *podStopper) stopLimit() time.Duration {
	limit := p.cfg.Timeouts.PodStop.D()
	if l := time.Duration(p.limit.Load()); l > 0 {
		limit = min(limit, l)
	}
	return limit
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
func (p *podStopper) stopContainers(ctx context.Context, pods []kubeapi.NodePod, known bool) error {
	end, _ := ctx.Deadline()
	limit := time.Until(end)
	limit -= min(fallbackReserve, limit/5)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return criclient.Run(ctx, p.binary(criclient.Program), p.environ(nil), criclient.Request{
		Socket: runtime.Socket(p.cfg), NodeIP: p.nodeIP,
		Limit: limit, CriticalReserve: min(criticalReserve, limit/4),
		Known: known, Pods: podsToStop(pods),
	}, func(r criclient.Report) {
		if r.Warning != "" {
			p.log.Warn(r.Warning)
		}
		if r.Changed {
			p.progress.set(shortList(r.Waiting))
		}
		if r.Interrupted != nil {
			p.restartInterrupted(ctx, pods, *r.Interrupted)
		}
	})
}

// restartInterrupted makes the kubelet restart, at the next start of the node, the containers of a pod that the stop
// interrupted and whose restart policy would not restart them. Without this, the kubelet counts a container as failed
// if the Pod object lists it as running and the runtime does not know it.
func (p *podStopper) restartInterrupted(ctx context.Context, pods []kubeapi.NodePod, pod criclient.Interrupted) {
	i := slices.IndexFunc(pods, func(k kubeapi.NodePod) bool { return k.UID == pod.UID })
	if i < 0 || pods[i].Static {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	c, err := p.client()
	if err == nil {
		err = c.MarkContainersWaiting(ctx, pods[i], pod.Containers, "NodeStopped", "the node was stopped; the container starts again when the node starts")
	}
	if err != nil {
		p.log.WithError(err).Warn("mark an interrupted pod for a restart; it will count as failed at the next start")
	}
}

// nodePods returns the node's pods from the API server.
func (p *podStopper) nodePods(ctx context.Context) ([]kubeapi.NodePod, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	c, err := p.client()
	if err != nil {
		return nil, err
	}
	return c.NodePods(ctx, p.cfg.NodeName)
}

// criticalPriority is the lowest priority of critical pods, as in the kubelet's graceful node shutdown: that of the
// PriorityClass system-cluster-critical.
const criticalPriority = 2_000_000_000

func podsToStop(list []kubeapi.NodePod) []criclient.Pod {
	pods := make([]criclient.Pod, 0, len(list))
	for _, p := range list {
		pods = append(pods, criclient.Pod{
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
	hub *status.Hub

	sync.Mutex
	text string
}

// set sets the reason of the pods unit in the status while the unit stops.
func (p *podsProgress) set(text string) {
	p.Lock()
	defer p.Unlock()
	p.text = text
	p.hub.Update(func(s *status.Status) {
		if c := s.Component(unitPods); c != nil && c.State == status.Stopping {
			c.Reason = text
		}
	})
}

// removeLeftovers removes what the supervisor keeps running: the pods, the runtime's shims, containers that the kubelet
// did not start, and programs of `rootlessnode exec`. Containers and programs get SIGTERM first. The cgroups of pods
// are removed too, because those created in a pod with a user namespace belong to a subordinate ID and cannot be
// removed from outside.
func removeLeftovers(tree cgroupv2.Tree, log logrus.FieldLogger, runtime runtime.Runtime) {
	ctx, cancel := context.WithTimeout(context.Background(), programGrace)
	defer cancel()
	endPrograms(ctx, tree, log, leaf("exec"), strings.TrimPrefix(runtime.Cgroup(), "/"))
	for _, name := range []string{kubepods, leaf("exec"), leaf(runtime.Unit())} {
		if err := tree.Remove(name); err != nil {
			log.WithError(err).Warn("remove the remaining processes and their cgroup")
		}
	}
}

// programGrace is the time between SIGTERM and SIGKILL for programs of `rootlessnode exec`. It is short because
// interactive shells ignore SIGTERM.
const programGrace = 3 * time.Second

// endPrograms sends SIGTERM to the processes in the cgroups and waits until they have exited or ctx ends.
func endPrograms(ctx context.Context, tree cgroupv2.Tree, log logrus.FieldLogger, names ...string) {
	for _, name := range names {
		if err := tree.Signal(name, unix.SIGTERM); err != nil {
			log.WithError(err).Warn("send SIGTERM to programs")
		}
	}
	for _, name := range names {
		if err := tree.WaitEmpty(ctx, name); err != nil {
			log.WithError(err).Warn("programs did not exit in time; killing them")
		}
	}
}
