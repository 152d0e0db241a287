package kubelet

import (
	"slices"
	"strconv"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/component"
)

const (
	milliPerCPU = 1000
	percent     = 100
)

func enforced(e component.Env, controller string) bool {
	return !slices.Contains(e.Unenforced, controller)
}

// enforcesAllocatable tells whether the kubelet can limit all pods together: it writes cpu.weight, memory.max and
// pids.max of PodCgroup in one go, and gives up at the first that fails (kubelet 1.37, enforceNodeAllocatableCgroups).
func enforcesAllocatable(e component.Env) bool {
	return enforced(e, "cpu") && enforced(e, "memory") && enforced(e, "pids")
}

// enforce is the kubelet's enforceNodeAllocatable. An empty list and none at all are two things to the kubelet: the latter
// means its default, which enforces.
func enforce(e component.Env) []string {
	asked := e.Config.Kubelet.EnforceNodeAllocatable
	switch {
	case !qosCgroups(e):
		return []string{}
	case !slices.Contains(asked, config.EnforceAuto):
		return append([]string{}, asked...)
	case enforcesAllocatable(e):
		return []string{"pods"}
	}
	return []string{}
}

func (c *configuration) resources(e component.Env) {
	r := e.Config.Resources
	c.EnforceNodeAllocatable = enforce(e)
	c.SystemReserved = reservations(e)
	if enforced(e, "pids") {
		c.PodPidsLimit = int64(r.PodPids)
		if left := e.Ceiling.Pids - int64(r.SystemReserved.Pids); r.PodPids == 0 && e.Ceiling.Pids > 0 {
			c.PodPidsLimit = max(left, 1)
		}
	}
	c.CPUManagerPolicy = config.CPUManagerNone
	if enforced(e, "cpuset") {
		c.CPUManagerPolicy = r.CPUManager
	}
	if r.MemoryHighPercent > 0 && enforced(e, "memory") {
		c.MemoryThrottlingFactor = float64(r.MemoryHighPercent) / percent
		c.FeatureGates[config.GateMemoryQoS] = true
	}
}

// reservations makes the kubelet's allocatable true. It takes the machine for its capacity, whatever cgroup it is in, and
// there is no setting for another: so what of the machine is not the node's is reserved along with what the components
// need. Allocatable is then the node's ceiling less systemReserved, less the memory at which pods are evicted.
func reservations(e component.Env) map[string]string {
	own, m := e.Config.Resources.SystemReserved, e.Machine
	reserve := func(own, machine, ceiling, evict int64) int64 {
		if machine > 0 && ceiling > 0 && ceiling < machine {
			own += machine - ceiling
		}
		if machine > 0 {
			own = min(own, max(machine-evict, 0)) // the kubelet does not start with reservations beyond its capacity
		}
		return own
	}
	evict := e.Config.Kubelet.MemoryEviction(m.MemoryBytes)
	out := map[string]string{
		"cpu":    strconv.FormatInt(reserve(own.CPU.Milli(), int64(m.CPUs)*milliPerCPU, e.Ceiling.CPUMilli, 0), 10) + "m",
		"memory": strconv.FormatInt(reserve(own.Memory.Value(), m.MemoryBytes, e.Ceiling.MemoryBytes, evict), 10),
	}
	if enforced(e, "pids") {
		out["pid"] = strconv.FormatInt(reserve(int64(own.Pids), m.Tasks, e.Ceiling.Pids, 0), 10)
	}
	return out
}
