package kubelet

import (
	"slices"
	"strconv"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
)

const (
	milliPerCPU = 1000
	percent     = 100
)

func enforced(e component.Env, controller string) bool {
	return !slices.Contains(e.Unenforced, controller)
}

// enforcesAllocatable reports whether the kubelet can limit all pods together. It writes cpu.weight, memory.max and
// pids.max of PodCgroup together and stops at the first error (kubelet 1.37, enforceNodeAllocatableCgroups).
func enforcesAllocatable(e component.Env) bool {
	return enforced(e, "cpu") && enforced(e, "memory") && enforced(e, "pids")
}

// enforce returns the kubelet's enforceNodeAllocatable. An empty list is not the same as a missing one: the latter
// means the default, which enforces limits.
func enforce(e component.Env) []string {
	requested := e.Config.Kubelet.EnforceNodeAllocatable
	switch {
	case !qosCgroups(e):
		return []string{}
	case !slices.Contains(requested, config.EnforceAuto):
		return append([]string{}, requested...)
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

// reservations returns the kubelet's systemReserved, such that allocatable is correct. The kubelet uses the whole
// machine as its capacity, regardless of its cgroup, and has no setting to change that. So the part of the machine that
// the node may not use is reserved, in addition to what the components need. Allocatable is then the node's ceiling
// minus resources.systemReserved and minus the memory eviction threshold.
func reservations(e component.Env) map[string]string {
	own, m := e.Config.Resources.SystemReserved, e.Machine
	reserve := func(own, machine, ceiling, evict int64) int64 {
		if machine > 0 && ceiling > 0 && ceiling < machine {
			own += machine - ceiling
		}
		if machine > 0 {
			own = min(own, max(machine-evict, 0)) // the kubelet does not start if the reservations exceed its capacity
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
