package hostinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Machine describes the resources of the machine as the kubelet sees them, independent of the cgroup in which it runs.
type Machine struct {
	// CPUs is the number of online CPUs.
	CPUs int
	// MemoryBytes is the size of the memory, without swap.
	MemoryBytes int64
	// Tasks is the maximum number of tasks that the kernel allows.
	Tasks int64
}

// ReadMachine reads the same sources as the kubelet and cAdvisor: MemTotal of /proc/meminfo, the CPUs of sysfs, and the smaller of
// kernel.pid_max and kernel.threads-max. root is prepended to the paths.
func ReadMachine(root string) (Machine, error) {
	var m Machine
	text, err := os.ReadFile(filepath.Join(root, "/proc/meminfo"))
	if err != nil {
		return Machine{}, fmt.Errorf("read the machine's memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return Machine{}, fmt.Errorf("read the machine's memory: %w", err)
			}
			m.MemoryBytes = kb << 10
		}
	}
	if m.CPUs, err = onlineCPUs(root); err != nil {
		return Machine{}, fmt.Errorf("read the machine's CPUs: %w", err)
	}
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue // masked in some containers; the other one is enough
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && (m.Tasks == 0 || n < m.Tasks) {
			m.Tasks = n
		}
	}
	return m, nil
}

// AvailableMemory returns the memory that programs can allocate without disturbing others, with free swap, in bytes (proc_meminfo(5)).
// root is prepended to the path.
func AvailableMemory(root string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(root, "/proc/meminfo"))
	if err != nil {
		return 0, fmt.Errorf("read the available memory: %w", err)
	}
	var sum int64
	for line := range strings.Lines(string(text)) {
		for _, key := range []string{"MemAvailable:", "SwapFree:"} {
			if rest, ok := strings.CutPrefix(line, key); ok {
				kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
				if err != nil {
					return 0, fmt.Errorf("read the available memory: %w", err)
				}
				sum += kb << 10
			}
		}
	}
	return sum, nil
}

// onlineCPUs returns the number of online CPUs from sysfs, or else from /proc/cpuinfo.
func onlineCPUs(root string) (int, error) {
	if text, err := os.ReadFile(filepath.Join(root, "/sys/devices/system/cpu/online")); err == nil {
		if n, err := CountList(strings.TrimSpace(string(text))); err == nil && n > 0 {
			return n, nil
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "/proc/cpuinfo"))
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "processor") {
			n++
		}
	}
	return n, nil
}

// CountList returns the number of elements of a list of numbers and ranges in the format of the kernel: 5 for "0-3,8". Pure.
func CountList(list string) (int, error) {
	n := 0
	if list == "" {
		return 0, nil
	}
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		b := a
		if err == nil && isRange {
			b, err = strconv.Atoi(last)
		}
		if err != nil || a < 0 || b < a {
			return 0, fmt.Errorf("%q is not a list of numbers and ranges", list)
		}
		n += b - a + 1
	}
	return n, nil
}
