package noderole

import (
	"maps"
	"slices"

	"github.com/rootlessnode/rootlessnode/internal/promtext"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// nodeMetrics returns the metrics of a node in the text format of Prometheus. docs/metrics.md describes them; their names and labels are
// kept compatible.
func nodeMetrics(s *status.Status, usage cgroupv2.Survey) []byte {
	var w promtext.Writer
	w.Metric("rootlessnode_info", promtext.Gauge, "Versions of the node; the value is 1.")
	w.Sample(1, promtext.Label{Name: "name", Value: s.Name}, promtext.Label{Name: "node", Value: s.NodeName},
		promtext.Label{Name: "version", Value: s.Version}, promtext.Label{Name: "kubernetes", Value: s.Kubernetes})
	w.Metric("rootlessnode_state", promtext.Gauge, "1 for the state of the node, 0 for the others.")
	for _, state := range []status.State{
		status.NodeStarting, status.NodeReady, status.NodeDegraded, status.NodeStopping, status.NodeStopped, status.NodeFailed,
	} {
		w.Sample(flag(s.State == state), promtext.Label{Name: "state", Value: string(state)})
	}
	w.Metric("rootlessnode_start_time_seconds", promtext.Gauge, "The start of the node, in seconds since 1970.")
	w.Sample(float64(s.StartedAt.UnixMilli()) / 1000)
	if ready, ok := s.Timings[status.NodeReadyTiming]; ok {
		w.Metric("rootlessnode_ready_seconds", promtext.Gauge, "The time from the start of the node until it was ready for the first time.")
		w.Sample(ready)
	}
	componentMetrics(&w, s.Components, usage)
	conditionMetrics(&w, s.Conditions)
	w.Metric("rootlessnode_ports", promtext.Gauge, "Ports of the host that are forwarded to the node, or should be, by state.")
	n := s.PortCounts
	for _, c := range []struct {
		state string
		count int
	}{
		{status.PortForwarded, n.Forwarded}, {status.PortWaiting, n.Waiting}, {status.PortPending, n.Pending}, {status.PortFailed, n.Failed},
		{status.PortRefused, n.Refused},
	} {
		w.Sample(float64(c.count), promtext.Label{Name: "state", Value: c.state})
	}
	return w.Bytes()
}

func componentMetrics(w *promtext.Writer, components []status.Component, usage cgroupv2.Survey) {
	each := func(value func(status.Component) float64) {
		for _, c := range components {
			w.Sample(value(c), promtext.Label{Name: "component", Value: c.Name})
		}
	}
	w.Metric("rootlessnode_component_ready", promtext.Gauge, "1 if the component is ready, or is a step that is done.")
	each(func(c status.Component) float64 { return flag(c.State == status.Ready || c.State == status.Done) })
	w.Metric("rootlessnode_component_restarts_total", promtext.Counter, "Restarts of the component since the start of the node.")
	each(func(c status.Component) float64 { return float64(c.Restarts) })

	used := func(value func(cgroupv2.Usage) *uint64, unit float64) {
		for _, name := range slices.Sorted(maps.Keys(usage.Components)) {
			if v := value(usage.Components[name]); v != nil {
				w.Sample(float64(*v)/unit, promtext.Label{Name: "component", Value: name})
			}
		}
	}
	w.Metric("rootlessnode_component_cpu_seconds_total", promtext.Counter, "CPU time of the component's processes, also of the roles parent, child and node.")
	used(func(u cgroupv2.Usage) *uint64 { return u.CPUUsec }, 1e6)
	w.Metric("rootlessnode_component_memory_bytes", promtext.Gauge, "Memory of the component without inactive cache; resident memory if the controller is missing.")
	used(func(u cgroupv2.Usage) *uint64 { return u.WorkingSetBytes }, 1)
	w.Metric("rootlessnode_component_tasks", promtext.Gauge, "Processes and threads of the component.")
	used(func(u cgroupv2.Usage) *uint64 { return u.Pids }, 1)
}

func conditionMetrics(w *promtext.Writer, conditions []status.Condition) {
	each := func(value func(status.Condition) bool) {
		for _, c := range conditions {
			w.Sample(flag(value(c)), promtext.Label{Name: "condition", Value: c.Type})
		}
	}
	w.Metric("rootlessnode_condition", promtext.Gauge, "1 if the condition is true.")
	each(func(c status.Condition) bool { return c.OK })
	w.Metric("rootlessnode_condition_warning", promtext.Gauge, "1 if the condition is true but needs attention.")
	each(func(c status.Condition) bool { return c.Warning })
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
