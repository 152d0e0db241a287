package layout

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
)

// HandoverInfo has the facts from the host side that the roles inside need. The parent writes it to Runtime.Handover before
// RootlessKit lets the child continue.
type HandoverInfo struct {
	// ParentPID and ChildPID are pids of the host's pid namespace.
	ParentPID int `json:"parentPID"`
	ChildPID  int `json:"childPID"`
	// StartedAt is when the parent process started.
	StartedAt time.Time `json:"startedAt"`
	// TTL is the time after StartedAt at which the parent stops the node; 0: never.
	TTL time.Duration `json:"ttl,omitempty"`
	// Network is the network that RootlessKit's driver has configured.
	Network NetworkInfo `json:"network"`
	// Cgroup is the node's subtree.
	Cgroup CgroupInfo `json:"cgroup"`
	// RegistryPorts are the ports of the registries at which the account is logged in.
	RegistryPorts []int `json:"registryPorts,omitempty"`
}

// NetworkInfo describes the node's uplink. IP is the node's address on Interface, PrefixLen the prefix length of the network in bits,
// and MTU is in bytes.
type NetworkInfo struct {
	Driver    string   `json:"driver"`
	Interface string   `json:"interface"`
	IP        string   `json:"ip"`
	PrefixLen int      `json:"prefixLen"`
	Gateway   string   `json:"gateway"`
	DNS       []string `json:"dns"`
	MTU       int      `json:"mtu"`
	// Ports is the port driver, and PortsWhy the reason for its choice.
	Ports    string `json:"ports,omitempty"`
	PortsWhy string `json:"portsWhy,omitempty"`
	// Warnings describe features that the driver cannot provide on this host. They are shown in the status.
	Warnings []string `json:"warnings,omitempty"`
}

// HostAddress is an address of the host with its interface.
type HostAddress struct {
	Interface string     `json:"interface"`
	IP        netip.Addr `json:"ip"`
}

// RouteOverlap is a route of the host that overlaps a network of the node, so that the node cannot reach the addresses in both.
type RouteOverlap struct {
	// Field is the configuration field of the node's network, and Range its value.
	Field string `json:"field"`
	Range string `json:"range"`
	Route string `json:"route"`
	// Device is the interface of the route, or another reason why the addresses must be reachable.
	Device string `json:"device"`
	// Free is a value of Field that overlaps no route of the host.
	Free string `json:"free"`
}

// PortFault is a forwarded port of the host that is open but currently accepts no connections. Proto is tcp, tcp4 or tcp6.
type PortFault struct {
	HostIP   string `json:"hostIP"`
	HostPort int    `json:"hostPort"`
	Proto    string `json:"proto"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`
}

// Forwarding is the state of the forwarded ports in the parent: the ports that accept no connections, and the parent's descriptors if
// they are nearly used up.
type Forwarding struct {
	Faults      []PortFault    `json:"faults"`
	Descriptors *DescriptorUse `json:"descriptors,omitempty"`
}

// DescriptorUse is the number of descriptors that a process has open, and how many it may open.
type DescriptorUse struct {
	Open  int `json:"open"`
	Limit int `json:"limit"`
}

// NetworkFault is the state of the network driver's process. An empty Message means that it runs.
type NetworkFault struct {
	Message string `json:"message"`
}

// CgroupInfo describes the node's cgroup subtree. Path is a path on the host; Enabled are the enabled controllers; Unenforced are the
// wanted controllers that are not available.
type CgroupInfo struct {
	Path       string   `json:"path"`
	Source     string   `json:"source"`
	Enabled    []string `json:"enabled"`
	Unenforced []string `json:"unenforced"`
	// Ceiling has the limits for the whole node: the enforced caps of the config and the limits of the cgroups above.
	Ceiling Limits `json:"ceiling"`
	// Refused has the caps of the config that the kernel refused, by the field names of Limits, with the reason.
	Refused map[string]string `json:"refused,omitempty"`
}

// Limits are the limits of a cgroup. 0 means no limit.
type Limits struct {
	// CPUMilli is the CPU time in thousandths of a CPU.
	CPUMilli int64 `json:"cpuMilli,omitempty"`
	// MemoryBytes is the memory without swap, in bytes.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// Pids is the number of tasks: processes and threads.
	Pids int64 `json:"pids,omitempty"`
}

// Least returns the smaller one of each limit of l and o.
func (l Limits) Least(o Limits) Limits {
	least := func(a, b int64) int64 {
		if a <= 0 || b > 0 && b < a {
			return b
		}
		return a
	}
	return Limits{least(l.CPUMilli, o.CPUMilli), least(l.MemoryBytes, o.MemoryBytes), least(l.Pids, o.Pids)}
}

// WriteJSON writes v as JSON to path, atomically and with mode 0600. The directory of path must exist.
func WriteJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := atomicfile.Write(path, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// readLimit is the maximum size in bytes of a file for ReadJSON.
const readLimit = 16 << 20

// ReadJSON decodes a file that WriteJSON wrote into v.
func ReadJSON(path string, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(f, readLimit+1))
	if err != nil {
		return err
	}
	if len(b) > readLimit {
		return fmt.Errorf("decode %s: larger than %d bytes", path, readLimit)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}
