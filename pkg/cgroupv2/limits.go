package cgroupv2

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Files of the controllers (cgroup-v2.rst, "CPU", "Memory", "PID", "Cpuset").
const (
	cpuMaxFile     = "cpu.max"
	memoryMaxFile  = "memory.max"
	pidsMaxFile    = "pids.max"
	cpusetFile     = "cpuset.cpus.effective"
	noLimit        = "max"
	cpuPeriod      = 100000 // the kernel's default, in microseconds
	milliPerCPU    = 1000
	minQuota       = 1000 // the kernel's minimum, in microseconds
	quotaPerMillis = cpuPeriod / milliPerCPU
)

// Limits are the limits of a cgroup. 0 means no limit.
type Limits = layout.Limits

// Limit sets the limits l for the whole subtree. It returns the limits that cannot be set, by name, with the kernel's error.
// Zero values are not written. It writes nothing outside the subtree.
//
// Runs in: parent.
func (s *Subtree) Limit(l Limits) (refused map[string]string) { return setLimits(s.path, l) }

// Ceiling returns the effective limits of the subtree: the minimum of its own limits and those of the cgroups above it that
// are visible. Cgroups above the root of a cgroup namespace are not visible.
//
// Runs in: parent.
func (s *Subtree) Ceiling() Limits {
	h, err := DetectHost(s.o)
	if err != nil {
		return readLimits(s.path)
	}
	return ceiling(h.Mount, s.path)
}

func setLimits(dir string, l layout.Limits) map[string]string {
	refused := map[string]string{}
	set := func(value int64, name, file, text string) {
		if value <= 0 {
			return
		}
		if err := write(dir, file, text); err != nil {
			refused[name] = reason(err)
		}
	}
	set(l.CPUMilli, "cpu", cpuMaxFile, fmt.Sprintf("%d %d", max(l.CPUMilli*quotaPerMillis, minQuota), cpuPeriod))
	set(l.MemoryBytes, "memory", memoryMaxFile, strconv.FormatInt(l.MemoryBytes, 10))
	set(l.Pids, "pids", pidsMaxFile, strconv.FormatInt(l.Pids, 10))
	return refused
}

// ceiling returns the minimum of the limits of dir and the cgroups above it, up to mount.
func ceiling(mount, dir string) layout.Limits {
	l := readLimits(dir)
	for d := dir; d != mount && strings.HasPrefix(d, mount+"/"); {
		d = filepath.Dir(d)
		l = l.Least(readLimits(d))
	}
	return l
}

// readLimits returns the limits of one cgroup. A missing file means no limit.
func readLimits(dir string) layout.Limits {
	var l layout.Limits
	if words, err := readList(dir, cpuMaxFile); err == nil && len(words) == 2 {
		quota, err1 := strconv.ParseInt(words[0], 10, 64)
		period, err2 := strconv.ParseInt(words[1], 10, 64)
		if err1 == nil && err2 == nil && period > 0 {
			l.CPUMilli = max(quota*milliPerCPU/period, 1)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, cpusetFile)); err == nil {
		if n, err := hostinfo.CountList(strings.TrimSpace(string(text))); err == nil && n > 0 {
			l = l.Least(layout.Limits{CPUMilli: int64(n) * milliPerCPU})
		}
	}
	l.MemoryBytes, _ = readAmount(dir, memoryMaxFile)
	l.Pids, _ = readAmount(dir, pidsMaxFile)
	return l
}

// readAmount returns the number in a file. "max" is returned as 0, which means no limit.
func readAmount(dir, file string) (int64, error) {
	words, err := readList(dir, file)
	if err != nil || len(words) != 1 || words[0] == noLimit {
		return 0, err
	}
	return strconv.ParseInt(words[0], 10, 64)
}
