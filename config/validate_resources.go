package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Minimum limits with which a node still starts in an acceptable time, measured with the embedded control plane and CoreDNS as
// the only pod.
const (
	minNodeCPUMilli = 500
	minNodeMemory   = 768 << 20
	minNodePids     = 512
	// minPodPids is enough for a sandbox, a program with a few threads and a debug shell.
	minPodPids = 16
)

func validateResources(c *NodeConfig, fs *faults) {
	r := c.Resources
	cpuFor, memoryFor := !fs.has("resources.systemReserved.cpu"), !fs.has("resources.systemReserved.memory")
	if r.CPU != "" && !fs.has("resources.cpu") {
		switch {
		case r.CPU.Milli() < minNodeCPUMilli:
			fs.add("resources.cpu", "", "%s: must be at least 500m, because the components take minutes to start with less", r.CPU)
		case cpuFor && r.CPU.Milli() <= r.SystemReserved.CPU.Milli():
			fs.add("resources.cpu", "", "%s: nothing is left for pods after resources.systemReserved.cpu, which is %s", r.CPU, r.SystemReserved.CPU)
		}
	}
	if r.Memory != "" && !fs.has("resources.memory") {
		switch evict := c.Kubelet.MemoryEviction(0); {
		case r.Memory.Value() < minNodeMemory:
			fs.add("resources.memory", "", "%s: must be at least 768Mi, which the components need", r.Memory)
		case memoryFor && r.Memory.Value() <= r.SystemReserved.Memory.Value()+evict:
			fs.add("resources.memory", "", "%s: nothing is left for pods after resources.systemReserved.memory, which is %s, and "+
				"kubelet.evictionHard.memory.available, which is %q", r.Memory, r.SystemReserved.Memory, c.Kubelet.EvictionHard[memoryAvailable])
		}
	}
	validatePids(c, fs)
	if _, explicit := c.Kubelet.ExtraConfig["reservedSystemCPUs"]; r.CPUManager == CPUManagerStatic && cpuFor && r.SystemReserved.CPU.Milli() == 0 && !explicit {
		fs.add("resources.cpuManager", "", "static: resources.systemReserved.cpu must be greater than zero, because pods without exclusive CPUs run there")
	}
	if on, set := c.Kubelet.FeatureGates[GateMemoryQoS]; set && !on && r.MemoryHighPercent > 0 {
		fs.add("resources.memoryHighPercent", "", "requires kubelet.featureGates.%s, which is disabled", GateMemoryQoS)
	}
}

// GateMemoryQoS is the kubelet's feature gate for memory.high (KEP-2570), enabled by default since 1.37.
const GateMemoryQoS = "MemoryQoS"

func validatePids(c *NodeConfig, fs *faults) {
	r := c.Resources
	if r.Pids < 0 || r.Pids > 0 && r.Pids < minNodePids {
		fs.add("resources.pids", "", "%d: must be 0 (no limit) or at least %d, which the components need", r.Pids, minNodePids)
	}
	if r.SystemReserved.Pids < 0 {
		fs.add("resources.systemReserved.pids", "", "%d: must be 0 or greater", r.SystemReserved.Pids)
	}
	left := r.Pids - r.SystemReserved.Pids
	if r.Pids >= minNodePids && left < minPodPids {
		fs.add("resources.pids", "", "%d: nothing is left for pods after resources.systemReserved.pids, which is %d", r.Pids, r.SystemReserved.Pids)
	}
	switch {
	case r.PodPids == 0:
	case r.PodPids < minPodPids:
		fs.add("resources.podPids", "", "%d: must be 0 (no separate limit) or at least %d", r.PodPids, minPodPids)
	case r.Pids > 0 && left >= minPodPids && r.PodPids > left:
		fs.add("resources.podPids", "", "%d: must be at most %d, which resources.pids and resources.systemReserved.pids leave for pods", r.PodPids, left)
	}
}

// quantityFault returns the fault of a limit or a reservation, or "".
func quantityFault(s, kind, want string) string {
	q, err := resource.ParseQuantity(s)
	switch limit := kind == "limit"; {
	case err != nil && limit:
		return fmt.Sprintf("%q: must be %s", s, want)
	case err != nil:
		return fmt.Sprintf("%q: must be %s, or 0", s, want)
	case limit && q.Sign() <= 0:
		return s + ": must be greater than zero; omit the field for no limit"
	case q.Sign() < 0:
		return s + ": must be 0 or greater"
	}
	return ""
}

const memoryAvailable = "memory.available"

// MemoryEviction returns the amount of available memory, in bytes, below which pods are evicted. machine is the memory of the
// machine in bytes, to which percentages apply, or 0 if it is unknown.
func (k Kubelet) MemoryEviction(machine int64) int64 {
	t := k.EvictionHard[memoryAvailable]
	if share, ok := strings.CutSuffix(t, "%"); ok {
		p, _ := strconv.ParseFloat(share, 64) // Validate has checked it
		return int64(float64(machine) * p / 100)
	}
	return Quantity(t).Value()
}

// controllers returns the fields that are set and the cgroup controller that each needs.
func (r Resources) controllers() []struct{ field, controller string } {
	type need = struct{ field, controller string }
	var out []need
	add := func(set bool, field, controller string) {
		if set {
			out = append(out, need{"resources." + field, controller})
		}
	}
	add(r.CPU != "", "cpu", "cpu")
	add(r.Memory != "", "memory", "memory")
	add(r.Pids > 0, "pids", "pids")
	add(r.PodPids > 0, "podPids", "pids")
	add(r.CPUManager == CPUManagerStatic, "cpuManager", "cpuset")
	add(r.MemoryHighPercent > 0, "memoryHighPercent", "memory")
	return out
}

// Limits are the limits of a cgroup. 0 means no limit.
type Limits = layout.Limits

// Limits returns the limits of the whole node.
func (r Resources) Limits() Limits {
	return Limits{CPUMilli: r.CPU.Milli(), MemoryBytes: r.Memory.Value(), Pids: int64(r.Pids)}
}

// Unenforced returns the fields that are set but have no effect on a node without the missing cgroup controllers.
func (r Resources) Unenforced(missing []string) []string {
	var out []string
	for _, n := range r.controllers() {
		if slices.Contains(missing, n.controller) {
			out = append(out, n.field)
		}
	}
	return out
}
