package cgroupv2

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// Usage is the resource usage of a cgroup and everything below it. A field is nil if it is unknown.
type Usage struct {
	// CPUUsec is CPU time in microseconds.
	CPUUsec *uint64 `json:"cpuUsec,omitempty"`
	// MemoryBytes is all memory that is charged to the cgroup. WorkingSetBytes excludes inactive file pages, which can be
	// reclaimed at once; the kubelet uses the same measure.
	MemoryBytes     *uint64 `json:"memoryBytes,omitempty"`
	WorkingSetBytes *uint64 `json:"workingSetBytes,omitempty"`
	// IOReadBytes and IOWriteBytes were read from and written to block devices.
	IOReadBytes  *uint64 `json:"ioReadBytes,omitempty"`
	IOWriteBytes *uint64 `json:"ioWriteBytes,omitempty"`
	// Pids is the number of tasks: processes and threads.
	Pids *uint64 `json:"pids,omitempty"`
	// FromProc names the resources (cpu, memory, pids) whose controller is missing. They are summed over the running
	// processes instead: resident memory counts shared pages once per process, and CPU time of ended processes is missing.
	FromProc []string `json:"fromProc,omitempty"`
}

// Names of resources in Usage.FromProc.
const (
	fromCPU    = "cpu"
	fromMemory = "memory"
	fromPids   = "pids"
)

// Add returns the sum of two usages. If a field is known in only one of them, that value is used.
func (u Usage) Add(o Usage) Usage {
	sum := func(a, b *uint64) *uint64 {
		if a == nil || b == nil {
			if a == nil {
				return b
			}
			return a
		}
		s := *a + *b
		return &s
	}
	from := slices.Concat(u.FromProc, o.FromProc)
	slices.Sort(from)
	return Usage{
		sum(u.CPUUsec, o.CPUUsec), sum(u.MemoryBytes, o.MemoryBytes), sum(u.WorkingSetBytes, o.WorkingSetBytes),
		sum(u.IOReadBytes, o.IOReadBytes), sum(u.IOWriteBytes, o.IOWriteBytes), sum(u.Pids, o.Pids), slices.Compact(from),
	}
}

// readUsage reads the usage of the cgroup at dir from its files. CPU, memory and pids without a controller are read from
// the stat files of its processes.
func readUsage(dir string, processes proc.FS) (Usage, error) {
	if _, err := os.Stat(filepath.Join(dir, procsFile)); err != nil {
		return Usage{}, fmt.Errorf("read usage of cgroup: %w", err)
	}
	var u Usage
	u.CPUUsec = readKey(dir, "cpu.stat", "usage_usec")
	u.MemoryBytes = readNumber(dir, "memory.current")
	u.WorkingSetBytes = workingSet(dir, u.MemoryBytes)
	u.Pids = readNumber(dir, "pids.current")
	u.IOReadBytes, u.IOWriteBytes = ioStat(dir)
	if u.CPUUsec != nil && u.MemoryBytes != nil && u.Pids != nil {
		return u, nil
	}
	p := sumProcesses(dir, processes)
	fallback := func(field **uint64, value uint64, name string) {
		if *field == nil {
			*field = &value
			u.FromProc = append(u.FromProc, name)
		}
	}
	fallback(&u.CPUUsec, p.cpuUsec, fromCPU)
	if u.MemoryBytes == nil {
		u.WorkingSetBytes = &p.rss
	}
	fallback(&u.MemoryBytes, p.rss, fromMemory)
	fallback(&u.Pids, p.threads, fromPids)
	return u, nil
}

// readNumber returns the number in a file, or nil on error.
func readNumber(dir, file string) *uint64 {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil
	}
	return parseNumber(string(bytes.TrimSpace(b)))
}

func parseNumber(text string) *uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// readKey returns the value of a key in a flat keyed file, which has lines "KEY VALUE", or nil on error.
func readKey(dir, file, key string) *uint64 {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return parseNumber(v)
		}
	}
	return nil
}

func workingSet(dir string, memory *uint64) *uint64 {
	inactive := readKey(dir, "memory.stat", "inactive_file")
	if memory == nil || inactive == nil {
		return memory
	}
	set := *memory - min(*inactive, *memory)
	return &set
}

// ioStat sums io.stat over devices: lines "MAJ:MIN rbytes=N wbytes=N …". A cgroup that has done no I/O has an empty file.
func ioStat(dir string) (read, written *uint64) {
	f, err := os.Open(filepath.Join(dir, "io.stat"))
	if err != nil {
		return nil, nil
	}
	defer func() { _ = f.Close() }() // read only
	var r, w uint64
	for s := bufio.NewScanner(f); s.Scan(); {
		for _, word := range strings.Fields(s.Text()) {
			key, value, _ := strings.Cut(word, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				continue
			}
			switch key {
			case "rbytes":
				r += n
			case "wbytes":
				w += n
			}
		}
	}
	return &r, &w
}

type processSum struct{ cpuUsec, rss, threads uint64 }

// ticksPerSecond is USER_HZ, the unit of times in /proc: 100 on every architecture that Go runs on (sysconf(3), _SC_CLK_TCK).
const ticksPerSecond = 100

// sumProcesses sums the usage of the processes in the cgroup and below. It skips processes that end meanwhile or are not
// visible.
func sumProcesses(dir string, processes proc.FS) (sum processSum) {
	_ = eachDir(dir, func(d string) error {
		pids, _ := readPids(d)
		for _, pid := range pids {
			if s, err := processes.Stat(pid); err == nil {
				sum.cpuUsec += (s.UserTicks + s.SystemTicks) * (1e6 / ticksPerSecond)
				sum.threads += s.Threads
				sum.rss += s.ResidentPages * uint64(os.Getpagesize())
			}
		}
		return nil
	})
	return sum
}
