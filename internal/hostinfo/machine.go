package hostinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Machine is what the machine has, as the kubelet sees it: whatever cgroup it runs in.
type Machine struct {
	// CPUs that are online.
	CPUs int
	// MemoryBytes without swap.
	MemoryBytes int64
	// Tasks that the kernel lets exist at a time.
	Tasks int64
}

// ReadMachine reads what the kubelet and cAdvisor read: MemTotal of /proc/meminfo, the CPUs of sysfs, and the smaller of
// kernel.pid_max and kernel.threads-max. root is put before the paths.
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

// onlineCPUs counts them in sysfs, and where there is none in /proc/cpuinfo.
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

// CountList counts a list of numbers and ranges as the kernel writes it: "0-3,8" has five. Pure.
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
