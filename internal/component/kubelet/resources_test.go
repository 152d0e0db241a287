package kubelet

import (
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// TestRenderCapped renders a config with all fields of config.Resources.
func TestRenderCapped(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	for path, v := range map[string]string{
		"resources.cpu": "2500m", "resources.memory": "4Gi", "resources.pids": "4096", "resources.cpuManager": "static",
		"resources.memoryHighPercent": "90",
	} {
		assert.NilError(t, e.Config.Set(path, v))
	}
	e.Ceiling = e.Config.Resources.Limits()
	r, err := Render(e)
	assert.NilError(t, err)
	golden.AssertBytes(t, fixture.File(r, "kubelet.yaml"), "capped.golden")
	c := decode(t, e)
	assert.Equal(t, c.CPUManagerPolicy, "static")
	assert.Equal(t, *c.MemoryThrottlingFactor, 0.9)
	assert.Assert(t, c.FeatureGates[config.GateMemoryQoS])
	assert.Equal(t, *c.PodPidsLimit, int64(4096-1024))
	assert.DeepEqual(t, c.EnforceNodeAllocatable, []string{"pods"})
}

// TestAllocatable computes allocatable as the kubelet does: capacity minus reservations minus the eviction threshold.
func TestAllocatable(t *testing.T) {
	t.Parallel()
	const gi, mi = int64(1) << 30, int64(1) << 20
	machine := hostinfo.Machine{CPUs: 4, MemoryBytes: 8 * gi, Tasks: 32768}
	for name, tc := range map[string]struct {
		ceiling layout.Limits
		machine hostinfo.Machine
		evict   string
		want    layout.Limits
	}{
		"no cap": {layout.Limits{}, machine, "100Mi", layout.Limits{CPUMilli: 3750, MemoryBytes: 7*gi - 100*mi, Pids: 31744}},
		"capped": {layout.Limits{CPUMilli: 1500, MemoryBytes: 4 * gi, Pids: 4096}, machine, "100Mi",
			layout.Limits{CPUMilli: 1250, MemoryBytes: 3*gi - 100*mi, Pids: 3072}},
		"a cap beyond the machine": {layout.Limits{CPUMilli: 9000, MemoryBytes: 99 * gi, Pids: 99999}, machine, "100Mi",
			layout.Limits{CPUMilli: 3750, MemoryBytes: 7*gi - 100*mi, Pids: 31744}},
		"an eviction threshold in percent of the machine": {layout.Limits{MemoryBytes: 4 * gi}, machine, "25%",
			layout.Limits{CPUMilli: 3750, MemoryBytes: gi, Pids: 31744}},
		"a machine smaller than the reservation": {layout.Limits{}, hostinfo.Machine{CPUs: 1, MemoryBytes: gi, Tasks: 900}, "100Mi",
			layout.Limits{CPUMilli: 750}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := fixture.Env()
			e.Machine, e.Ceiling = tc.machine, tc.ceiling
			e.Config.Kubelet.EvictionHard["memory.available"] = tc.evict
			reserved := decode(t, e).SystemReserved
			value := func(name string) resource.Quantity {
				q, err := resource.ParseQuantity(reserved[name])
				assert.NilError(t, err)
				return q
			}
			cpu, memory, pids := value("cpu"), value("memory"), value("pid")
			got := layout.Limits{
				CPUMilli:    int64(tc.machine.CPUs)*1000 - cpu.MilliValue(),
				MemoryBytes: tc.machine.MemoryBytes - memory.Value() - e.Config.Kubelet.MemoryEviction(tc.machine.MemoryBytes),
				Pids:        tc.machine.Tasks - pids.Value(),
			}
			assert.Equal(t, got, tc.want)
		})
	}
	e := fixture.Env()
	e.Machine = hostinfo.Machine{}
	assert.DeepEqual(t, decode(t, e).SystemReserved, map[string]string{"cpu": "250m", "memory": "1073741824", "pid": "1024"})
}

func TestPodPids(t *testing.T) {
	t.Parallel()
	limit := func(change func(*component.Env)) *int64 {
		e := fixture.Env()
		change(&e)
		return decode(t, e).PodPidsLimit
	}
	assert.Assert(t, limit(func(*component.Env) {}) == nil, "no limit unless requested")
	assert.Equal(t, *limit(func(e *component.Env) { e.Config.Resources.PodPids = 100; e.Ceiling.Pids = 4096 }), int64(100))
	assert.Equal(t, *limit(func(e *component.Env) { e.Ceiling.Pids = 4096 }), int64(3072))
	assert.Equal(t, *limit(func(e *component.Env) { e.Ceiling.Pids = 600 }), int64(1), "the parent cgroup has less than the reservation")
}

func TestEnforceNodeAllocatable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		asked, missing, want []string
	}{
		{[]string{config.EnforceAuto}, nil, []string{"pods"}},
		{[]string{config.EnforceAuto}, []string{"cpuset"}, []string{"pods"}},
		{[]string{config.EnforceAuto}, []string{"pids"}, []string{}},
		{[]string{config.EnforceAuto}, []string{"memory"}, []string{}},
		{[]string{"pods", "system-reserved"}, []string{"pids"}, []string{"pods", "system-reserved"}},
		{[]string{"pods"}, []string{"cpu"}, []string{}},
		{[]string{}, nil, []string{}},
	} {
		e := fixture.Env()
		e.Config.Kubelet.EnforceNodeAllocatable, e.Unenforced = tc.asked, tc.missing
		assert.DeepEqual(t, decode(t, e).EnforceNodeAllocatable, tc.want)
	}
}
