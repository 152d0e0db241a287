package layout

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// HandoverInfo is what the parent learned on the host side and the roles inside need: it is written to Runtime.Handover
// before RootlessKit lets the child go on.
type HandoverInfo struct {
	// ParentPID and ChildPID are pids of the host's pid namespace.
	ParentPID int `json:"parentPID"`
	ChildPID  int `json:"childPID"`
	// StartedAt is when the parent began.
	StartedAt time.Time `json:"startedAt"`
	// Network as RootlessKit's driver made it.
	Network NetworkInfo `json:"network"`
	// Cgroup is the node's subtree.
	Cgroup CgroupInfo `json:"cgroup"`
}

// NetworkInfo is the node's uplink. IP is its address on Interface, PrefixLen that network's length in bits, MTU in bytes.
type NetworkInfo struct {
	Driver    string   `json:"driver"`
	Interface string   `json:"interface"`
	IP        string   `json:"ip"`
	PrefixLen int      `json:"prefixLen"`
	Gateway   string   `json:"gateway"`
	DNS       []string `json:"dns"`
	MTU       int      `json:"mtu"`
	// Ports is the port driver, PortsWhy why it is that.
	Ports    string `json:"ports,omitempty"`
	PortsWhy string `json:"portsWhy,omitempty"`
	// Warnings are what the driver could not do on this host, for the status.
	Warnings []string `json:"warnings,omitempty"`
}

// HostAddress is one address of the host and the interface that has it.
type HostAddress struct {
	Interface string     `json:"interface"`
	IP        netip.Addr `json:"ip"`
}

// PortFault is a forwarded port of the host that is open and takes no connections at present. Proto is one of tcp, tcp4, tcp6.
type PortFault struct {
	HostIP   string `json:"hostIP"`
	HostPort int    `json:"hostPort"`
	Proto    string `json:"proto"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`
}

// CgroupInfo is the node's cgroup subtree as a host path, the controllers in force in it, and those wanted ones that
// are not.
type CgroupInfo struct {
	Path       string   `json:"path"`
	Source     string   `json:"source"`
	Enabled    []string `json:"enabled"`
	Unenforced []string `json:"unenforced"`
	// Ceiling is what holds for the whole node: its own caps as far as they are enforced, and those of the cgroups above.
	Ceiling Limits `json:"ceiling"`
	// Refused are the caps of the config that the kernel did not take, by the names of Limits, with the reason.
	Refused map[string]string `json:"refused,omitempty"`
}

// Limits of a cgroup. 0: none.
type Limits struct {
	// CPUMilli is CPU time in thousandths of a CPU.
	CPUMilli int64 `json:"cpuMilli,omitempty"`
	// MemoryBytes is memory without swap.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// Pids are tasks: processes and threads.
	Pids int64 `json:"pids,omitempty"`
}

// Least has the smaller one of each limit.
func (l Limits) Least(o Limits) Limits {
	least := func(a, b int64) int64 {
		if a <= 0 || b > 0 && b < a {
			return b
		}
		return a
	}
	return Limits{least(l.CPUMilli, o.CPUMilli), least(l.MemoryBytes, o.MemoryBytes), least(l.Pids, o.Pids)}
}

// WriteJSON writes v to path atomically with mode 0600. Its directory must exist.
func WriteJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = tmp.Write(append(b, '\n'))
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // best effort: the write's own error is the one to tell
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// ReadJSON reads what WriteJSON wrote.
func ReadJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}
