package noderole

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/promtext"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

// resourceUsage reports the usage of the node and its containers as the kubelet does at /metrics/resource. metrics-server reads
// it if the memory controller is missing: the kubelet then reports 0 bytes.
type resourceUsage struct {
	survey func() (cgroupv2.Survey, error)
	// list returns the containers of the runtime. It starts a program, so it is called only after new containers have appeared.
	list func(context.Context) ([]criclient.Container, error)
	now  func() time.Time

	mu    sync.Mutex
	known map[string]criclient.Container // by id
}

func (n *nodeRole) resourceUsage() *resourceUsage {
	return &resourceUsage{
		survey: func() (cgroupv2.Survey, error) { return cgroupv2.ReadSurvey(layout.InsideCgroup) },
		list: func(ctx context.Context) ([]criclient.Container, error) {
			return criclient.ListContainers(ctx, n.binary(criclient.Program), n.environ(nil), runtime.Socket(n.cfg))
		},
		now: time.Now,
	}
}

// text returns the usage in the text format of Prometheus, with the names of the kubelet's metrics.
func (u *resourceUsage) text(ctx context.Context) ([]byte, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s, err := u.survey()
	if err != nil {
		return nil, err
	}
	now := u.now()
	if err := u.learn(ctx, s.Pods); err != nil {
		return nil, err
	}
	var w promtext.Writer
	w.At(now)
	w.Metric("node_cpu_usage_seconds_total", promtext.Counter, "CPU time of the node.")
	w.Sample(seconds(s.Node.CPUUsec))
	w.Metric("node_memory_working_set_bytes", promtext.Gauge, "Memory of the node.")
	w.Sample(number(s.Node.WorkingSetBytes))
	w.Metric("container_cpu_usage_seconds_total", promtext.Counter, "CPU time of the container.")
	u.samples(&w, s.Pods, func(u cgroupv2.Usage) float64 { return seconds(u.CPUUsec) })
	w.Metric("container_memory_working_set_bytes", promtext.Gauge, "Memory of the container.")
	u.samples(&w, s.Pods, func(u cgroupv2.Usage) float64 { return number(u.WorkingSetBytes) })
	return w.Bytes(), nil
}

// samples adds a sample for each container. Without the memory controller, each container has a cgroup of its own below that
// of all pods.
func (u *resourceUsage) samples(w *promtext.Writer, pods []cgroupv2.PodUsage, value func(cgroupv2.Usage) float64) {
	for _, p := range pods {
		if len(p.Containers) != 1 {
			continue
		}
		if c := u.known[p.Containers[0]]; c.Name != "" { // a sandbox has no name
			w.Sample(value(p.Usage), promtext.Label{Name: "container", Value: c.Name},
				promtext.Label{Name: "namespace", Value: c.Namespace}, promtext.Label{Name: "pod", Value: c.Pod})
		}
	}
}

// learn completes known if there are containers that are not in it. Those that the runtime does not know have just ended.
func (u *resourceUsage) learn(ctx context.Context, pods []cgroupv2.PodUsage) error {
	unknown := slices.ContainsFunc(pods, func(p cgroupv2.PodUsage) bool {
		return slices.ContainsFunc(p.Containers, func(id string) bool { _, ok := u.known[id]; return !ok })
	})
	if !unknown {
		return nil
	}
	all, err := u.list(ctx)
	if err != nil {
		return err
	}
	u.known = map[string]criclient.Container{}
	for _, p := range pods {
		for _, id := range p.Containers {
			u.known[id] = criclient.Container{}
		}
	}
	for _, c := range all {
		u.known[c.ID] = c
	}
	return nil
}

func number(v *uint64) float64 {
	if v == nil {
		return 0
	}
	return float64(*v)
}

func seconds(usec *uint64) float64 { return number(usec) / 1e6 }
