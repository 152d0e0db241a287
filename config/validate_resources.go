package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// The least with which a node still starts in a bearable time. They are ours: measured with the embedded control plane and
// no pod but CoreDNS.
const (
	minNodeCPUMilli = 500
	minNodeMemory   = 768 << 20
	minNodePids     = 512
	// minPodPids: a sandbox, a program with a few threads and a shell to look at it.
	minPodPids = 16
)

func (c *NodeConfig) validateResources(fs *faults) {
	r := c.Resources
	const cpuLike, memoryLike = "a number of CPUs such as 2, 0.5 or 1500m", "an amount of memory such as 4Gi or 6000M"
	cpu := capOf(fs, "resources.cpu", r.CPU, cpuLike)
	memory := capOf(fs, "resources.memory", r.Memory, memoryLike)
	cpuFor := reservationOf(fs, "resources.systemReserved.cpu", r.SystemReserved.CPU, cpuLike)
	memoryFor := reservationOf(fs, "resources.systemReserved.memory", r.SystemReserved.Memory, memoryLike)
	if cpu {
		switch {
		case r.CPU.Milli() < minNodeCPUMilli:
			fs.add("resources.cpu", "", "%s: want at least 500m, with less the components take minutes to start", r.CPU)
		case cpuFor && r.CPU.Milli() <= r.SystemReserved.CPU.Milli():
			fs.add("resources.cpu", "", "%s: nothing is left for pods after resources.systemReserved.cpu, which is %s", r.CPU, r.SystemReserved.CPU)
		}
	}
	if memory {
		switch evict := c.Kubelet.MemoryEviction(0); {
		case r.Memory.Value() < minNodeMemory:
			fs.add("resources.memory", "", "%s: want at least 768Mi, the components need that", r.Memory)
		case memoryFor && r.Memory.Value() <= r.SystemReserved.Memory.Value()+evict:
			fs.add("resources.memory", "", "%s: nothing is left for pods after resources.systemReserved.memory, which is %s, and "+
				"kubelet.evictionHard.memory.available, which is %q", r.Memory, r.SystemReserved.Memory, c.Kubelet.EvictionHard[memoryAvailable])
		}
	}
	c.validatePids(fs)
	oneOf(fs, "resources.cpuManager", r.CPUManager, CPUManagerNone, CPUManagerStatic)
	if _, byHand := c.Kubelet.ExtraConfig["reservedSystemCPUs"]; r.CPUManager == CPUManagerStatic && cpuFor && r.SystemReserved.CPU.Milli() == 0 && !byHand {
		fs.add("resources.cpuManager", "", "static: resources.systemReserved.cpu must be more than 0: pods without CPUs of their own run there too")
	}
	inRange(fs, "resources.memoryHighPercent", r.MemoryHighPercent, 0, 100)
	if on, set := c.Kubelet.FeatureGates[GateMemoryQoS]; set && !on && r.MemoryHighPercent > 0 {
		fs.add("resources.memoryHighPercent", "", "needs kubelet.featureGates.%s, which is switched off", GateMemoryQoS)
	}
}

// GateMemoryQoS is the kubelet's switch for memory.high (KEP-2570), on by default since 1.37.
const GateMemoryQoS = "MemoryQoS"

func (c *NodeConfig) validatePids(fs *faults) {
	r := c.Resources
	if r.Pids < 0 || r.Pids > 0 && r.Pids < minNodePids {
		fs.add("resources.pids", "", "%d: want 0 for no cap, or at least %d, the components need that", r.Pids, minNodePids)
	}
	if r.SystemReserved.Pids < 0 {
		fs.add("resources.systemReserved.pids", "", "%d: want 0 or more", r.SystemReserved.Pids)
	}
	left := r.Pids - r.SystemReserved.Pids
	if r.Pids >= minNodePids && left < minPodPids {
		fs.add("resources.pids", "", "%d: nothing is left for pods after resources.systemReserved.pids, which is %d", r.Pids, r.SystemReserved.Pids)
	}
	switch {
	case r.PodPids == 0:
	case r.PodPids < minPodPids:
		fs.add("resources.podPids", "", "%d: want 0 for no limit of its own, or at least %d", r.PodPids, minPodPids)
	case r.Pids > 0 && left >= minPodPids && r.PodPids > left:
		fs.add("resources.podPids", "", "%d: resources.pids and resources.systemReserved.pids leave %d for all pods", r.PodPids, left)
	}
}

// capOf tells whether a cap is given and can be used.
func capOf(fs *faults, field string, q Quantity, want string) bool {
	v, err := q.parse()
	switch {
	case q == "":
		return false
	case err != nil:
		fs.add(field, "", "%q: want %s", string(q), want)
	case v.Sign() <= 0:
		fs.add(field, "", "%s: want more than nothing; leave it out for no cap", q)
	default:
		return true
	}
	return false
}

// reservationOf tells whether a reservation can be used.
func reservationOf(fs *faults, field string, q Quantity, want string) bool {
	v, err := q.parse()
	switch {
	case q == "" || err != nil:
		fs.add(field, "", "%q: want %s, or 0", string(q), want)
	case v.Sign() < 0:
		fs.add(field, "", "%s: want 0 or more", q)
	default:
		return true
	}
	return false
}

const memoryAvailable = "memory.available"

// MemoryEviction is the amount of available memory, in bytes, below which pods are evicted. A share is one of the whole
// machine, in bytes; 0 where the machine is not known.
func (k Kubelet) MemoryEviction(machine int64) int64 {
	t := k.EvictionHard[memoryAvailable]
	if share, ok := strings.CutSuffix(t, "%"); ok {
		p, _ := strconv.ParseFloat(share, 64) // Validate has looked at it
		return int64(float64(machine) * p / 100)
	}
	return Quantity(t).Value()
}

// controllers are the cgroup controllers that what is asked for here needs, by the field that asks.
func (r Resources) controllers() []struct{ field, controller string } {
	type need = struct{ field, controller string }
	var out []need
	add := func(asked bool, field, controller string) {
		if asked {
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

// Limits are the caps of the whole node.
func (r Resources) Limits() layout.Limits {
	return layout.Limits{CPUMilli: r.CPU.Milli(), MemoryBytes: r.Memory.Value(), Pids: int64(r.Pids)}
}

// Unenforced names the fields that are asked for and do nothing on a node without these cgroup controllers.
func (r Resources) Unenforced(missing []string) []string {
	var out []string
	for _, n := range r.controllers() {
		if slices.Contains(missing, n.controller) {
			out = append(out, n.field)
		}
	}
	return out
}
