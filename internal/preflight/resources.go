package preflight

import (
	"context"
	"fmt"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// checkResources compares config.Resources with the resources of the machine and with the delegated controllers.
func checkResources(_ context.Context, h *host) []Finding {
	r := h.cfg.Resources
	var found []Finding
	if _, d, err := h.probes.Delegation(); err == nil { // otherwise reported by check cgroup
		if fields := r.Unenforced(d.Missing); len(fields) > 0 {
			f := warn("%s: not enforced, because the cgroup lacks %s; the scheduler still honors the caps", strings.Join(fields, ", "), strings.Join(d.Missing, ", "))
			f.fix = fixOf(d.Hint())
			found = append(found, f)
		}
	}
	m, err := hostinfo.ReadMachine(h.in.Root + "/")
	if err != nil {
		return append(found, unreadable(err)...)
	}
	details := map[string]string{
		"cpus": fmt.Sprint(m.CPUs), "memory": fmt.Sprint(m.MemoryBytes), "tasks": fmt.Sprint(m.Tasks),
	}
	const milli = 1000
	for _, c := range []struct {
		field, cap     string
		asked, machine int64
		have           string
		forComponents  int64
	}{
		{"cpu", string(r.CPU), r.CPU.Milli(), int64(m.CPUs) * milli, fmt.Sprintf("%d CPUs", m.CPUs), r.SystemReserved.CPU.Milli()},
		{"memory", string(r.Memory), r.Memory.Value(), m.MemoryBytes, fmt.Sprintf("%d MiB", m.MemoryBytes>>20),
			r.SystemReserved.Memory.Value() + h.cfg.Kubelet.MemoryEviction(m.MemoryBytes)},
		{"pids", fmt.Sprint(r.Pids), int64(r.Pids), m.Tasks, fmt.Sprintf("%d tasks", m.Tasks), int64(r.SystemReserved.Pids)},
	} {
		switch {
		case c.machine <= 0:
		case c.asked > c.machine:
			found = append(found, warn("resources.%s: %s is more than the machine has (%s)", c.field, c.cap, c.have).with(details))
		case c.asked == 0 && c.forComponents >= c.machine:
			found = append(found, warn("resources.systemReserved.%s leaves nothing for pods: the machine has %s", c.field, c.have).with(details))
		}
	}
	if len(found) > 0 {
		return found
	}
	var caps []string
	for _, c := range []struct{ name, value string }{{"cpu", string(r.CPU)}, {"memory", string(r.Memory)}, {"pids", fmt.Sprint(r.Pids)}} {
		if c.value != "" && c.value != "0" {
			caps = append(caps, c.name+" "+c.value)
		}
	}
	if len(caps) == 0 {
		return []Finding{pass("no cap: the node may use the machine's %d CPUs and %d MiB", m.CPUs, m.MemoryBytes>>20).with(details)}
	}
	return []Finding{pass("the node is capped: %s", strings.Join(caps, ", ")).with(details)}
}
