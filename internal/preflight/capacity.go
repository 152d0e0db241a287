package preflight

import (
	"context"
	"path/filepath"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

// Tasks (threads) of a node. The components of a control plane have more than 100 when it is Ready.
const (
	tasksFail = 512
	tasksWarn = 4096
)

// checkProcesses compares the limits of tasks with the number that a node needs: the hard limit of the login, and those of the cgroups
// above the node's.
func checkProcesses(_ context.Context, h *host) []Finding {
	var found []Finding
	check := func(n uint64, limit string, hint ...string) {
		switch {
		case n < tasksFail:
			found = append(found, fail("%s allows %d more processes and threads, but a node needs at least %d", limit, n, tasksFail).hint(hint...))
		case n < tasksWarn:
			found = append(found, warn("%s allows %d more processes and threads: few pods will run", limit, n).hint(hint...))
		}
	}
	if n, _, err := h.hardLimit("Max processes"); err == nil {
		check(n, "the login's hard limit", h.raiseLimit("nproc", "unlimited", "NPROC")...)
	}
	for _, room := range h.rooms() {
		if room.Tasks != nil {
			file := filepath.Join(room.Dir, "pids.max")
			check(*room.Tasks, file, asRoot("sh -c "+hostinfo.Quote("echo max > "+file)), "# under systemd, set TasksMax= of the slice or unit instead")
		}
	}
	return orPass(found, "enough processes and threads")
}

// rooms returns the limits of the delegated cgroup and of those above it.
func (h *host) rooms() []cgroupv2.Room {
	tree, d, err := h.probes.Delegation()
	if err != nil {
		return nil // reported by check cgroup
	}
	dir := d.Root
	if dir == "" {
		dir = tree.SelfDir()
	}
	return cgroupv2.Rooms(tree.Mount, dir)
}

// Available memory. A control plane with its first pods needs about 700 MB.
const (
	memoryFail = 300 << 20
	memoryWarn = 1 << 30
)

// checkMemory compares the available memory, with swap, with that of a start, also within the limits of the cgroups above the node's.
func checkMemory(_ context.Context, h *host) []Finding {
	available, err := hostinfo.AvailableMemory(h.in.Root + "/")
	if err != nil {
		return unreadable(err)
	}
	where := "the machine"
	for _, room := range h.rooms() {
		if room.MemoryBytes != nil && *room.MemoryBytes < uint64(available) {
			available, where = int64(*room.MemoryBytes), room.Dir
		}
	}
	mib := available >> 20
	hint := []string{"# end other programs, add memory, or raise memory.max of the cgroup:", "free -m"}
	switch {
	case available < memoryFail:
		return []Finding{fail("%s has %d MiB of memory available, but a node needs at least %d", where, mib, memoryFail>>20).hint(hint...)}
	case available < memoryWarn:
		return []Finding{warn("%s has %d MiB of memory available: few pods will run", where, mib).hint(hint...)}
	}
	return []Finding{pass("%d MiB of memory available", mib)}
}
