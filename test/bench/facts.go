package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// facts describe the machine, which is needed to interpret the results.
type facts struct {
	Time         time.Time `json:"time"`
	Kernel       string    `json:"kernel"`
	CPU          string    `json:"cpu"`
	Cores        int       `json:"cores"`
	MemoryMB     int       `json:"memoryMB"`
	Load         string    `json:"loadAtStart"`
	Go           string    `json:"go"`
	Rootlessnode string    `json:"rootlessnode"`
	Kubernetes   string    `json:"kubernetes,omitempty"`
	RootlessKit  string    `json:"rootlesskit"`
	Slirp        string    `json:"slirp4netns"`
	Network      string    `json:"networkDriver,omitempty"`
}

func (f facts) String() string {
	return fmt.Sprintf("Linux %s, %d cores of %s, %d MB, load %s", f.Kernel, f.Cores, f.CPU, f.MemoryMB, f.Load)
}

func readFacts(ctx context.Context, o options) facts {
	return facts{
		Time: time.Now().UTC(), Kernel: oneLine("/proc/sys/kernel/osrelease"), CPU: field("/proc/cpuinfo", "model name"),
		Cores: runtime.NumCPU(), MemoryMB: kilobytes(field("/proc/meminfo", "MemTotal")) / 1024, Load: load(),
		Go: runtime.Version(), RootlessKit: firstLine(ctx, o.rootlesskit, "--version"),
		Slirp: firstLine(ctx, "slirp4netns", "--version"),
	}
}

func load() string {
	f := strings.Fields(oneLine("/proc/loadavg"))
	if len(f) < 3 {
		return "unknown"
	}
	return strings.Join(f[:3], " ")
}

func oneLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

// field returns the first value of a key in a file with "key : value" lines.
func field(path, key string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// kilobytes parses "123 kB". It returns 0 for other text.
func kilobytes(s string) int {
	n, _ := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(s, "kB")))
	return n
}

func firstLine(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "unknown"
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return string(line)
}

// ticks has the processors' times since boot.
type ticks struct{ all, idle float64 }

func readTicks() ticks {
	var t ticks
	line, _, _ := strings.Cut(oneLine("/proc/stat"), "\n")
	const idle, iowait = 4, 5 // proc(5): cpu user nice system idle iowait irq softirq steal
	for i, f := range strings.Fields(line) {
		v, _ := strconv.ParseFloat(f, 64)
		if i == 0 || i > 8 {
			continue
		}
		t.all += v
		if i == idle || i == iowait {
			t.idle += v
		}
	}
	return t
}

// busySince returns the share of time in which the processors were busy since an earlier reading, from 0 to 1.
func (t ticks) busySince(earlier ticks) float64 {
	if t.all <= earlier.all {
		return 0
	}
	return 1 - (t.idle-earlier.idle)/(t.all-earlier.all)
}

// A measurement starts when the processors are busy for at most this share of this time.
const (
	quietShare = 0.25
	quietLook  = time.Second
)

// waitQuiet waits until the machine is idle, but only for a limited time, because the machine may be shared.
func (b *bench) waitQuiet(ctx context.Context) {
	until := time.Now().Add(b.quiet)
	for time.Now().Before(until) {
		before := readTicks()
		select {
		case <-ctx.Done():
			return
		case <-time.After(quietLook):
		}
		if readTicks().busySince(before) < quietShare {
			return
		}
	}
}
