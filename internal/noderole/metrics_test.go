package noderole

import (
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/docs"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// TestNodeMetrics checks the samples, and that docs/metrics.md describes every metric.
func TestNodeMetrics(t *testing.T) {
	t.Parallel()
	cpu, memory := uint64(1_500_000), uint64(4096)
	s := &status.Status{
		Name: "a", NodeName: "vm", Version: "v1", Kubernetes: "v1.37.2", State: status.NodeDegraded, StartedAt: time.UnixMilli(1500),
		Timings:    map[string]float64{status.NodeReadyTiming: 6.5},
		Components: []status.Component{{Name: "kubelet", State: status.Ready, Restarts: 2}, {Name: "etcd", State: status.Backoff}},
		Conditions: []status.Condition{{Type: "Disk", OK: true, Warning: true}, {Type: "Uplink"}},
		PortCounts: status.PortCounts{Forwarded: 3, Refused: 1},
	}
	text := string(nodeMetrics(s, cgroupv2.Survey{Components: map[string]cgroupv2.Usage{"parent": {CPUUsec: &cpu, WorkingSetBytes: &memory}}}))
	for _, want := range []string{
		`rootlessnode_info{name="a",node="vm",version="v1",kubernetes="v1.37.2"} 1`, `rootlessnode_state{state="degraded"} 1`,
		`rootlessnode_state{state="ready"} 0`, `rootlessnode_start_time_seconds 1.5`, `rootlessnode_ready_seconds 6.5`,
		`rootlessnode_component_ready{component="kubelet"} 1`, `rootlessnode_component_ready{component="etcd"} 0`,
		`rootlessnode_component_restarts_total{component="kubelet"} 2`, `rootlessnode_component_cpu_seconds_total{component="parent"} 1.5`,
		`rootlessnode_component_memory_bytes{component="parent"} 4096`, `rootlessnode_condition{condition="Disk"} 1`,
		`rootlessnode_condition{condition="Uplink"} 0`, `rootlessnode_condition_warning{condition="Disk"} 1`,
		`rootlessnode_ports{state="forwarded"} 3`, `rootlessnode_ports{state="refused"} 1`, `rootlessnode_ports{state="failed"} 0`,
	} {
		assert.Check(t, is.Contains(text, "\n"+want+"\n"))
	}
	page, err := docs.Page("metrics.md")
	assert.NilError(t, err)
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ = strings.Cut(name, " ")
			assert.Check(t, is.Contains(page, "| `"+name), "docs/metrics.md does not describe it")
		}
	}
}
