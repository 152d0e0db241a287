package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// resident has the memory of one of rootlessnode's processes, in kilobytes.
type resident struct {
	Role string `json:"role"`
	PID  int    `json:"pid"`
	// RSS counts every page, Pss divides shared pages by the number of processes, and Anon counts private anonymous pages.
	RSS  int `json:"rssKB"`
	Pss  int `json:"pssKB"`
	Anon int `json:"anonKB"`
}

// memory reads the memory of rootlessnode's processes after a pause.
func (b *bench) memory(ctx context.Context) ([]row, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(b.rest):
	}
	s, err := b.node.status(ctx)
	if err != nil {
		return nil, err
	}
	nodePIDs, err := cgroupPIDs(filepath.Join(s.Cgroup.Path, "system", "node"))
	if err != nil {
		return nil, err
	}
	if len(nodePIDs) != 1 {
		return nil, fmt.Errorf("the node role has %d processes", len(nodePIDs))
	}
	pids := map[string]int{"parent": s.ParentPID, "child": s.ChildPID, "node role": nodePIDs[0]}
	if pids["guard"], err = processWith("guard of " + s.RuntimeDir); err != nil {
		return nil, err
	}
	helpers, err := cgroupPIDs(filepath.Join(s.Cgroup.Path, "system", "parent"))
	if err != nil {
		return nil, err
	}
	for _, pid := range helpers {
		if pid != s.ParentPID {
			pids[oneLine(fmt.Sprintf("/proc/%d/comm", pid))] = pid
		}
	}
	var all []resident
	for role, pid := range pids {
		all = append(all, resident{
			Role: role, PID: pid, RSS: kilobytes(field(fmt.Sprintf("/proc/%d/status", pid), "VmRSS")),
			Anon: kilobytes(field(fmt.Sprintf("/proc/%d/status", pid), "RssAnon")),
			Pss:  kilobytes(field(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss")),
		})
	}
	slices.SortFunc(all, func(a, b resident) int { return b.RSS - a.RSS })
	return memoryRows(all), b.save(partMemory, all)
}

func memoryRows(all []resident) []row {
	const target = 90
	var rss, pss int
	var detail []row
	for _, r := range all {
		if slices.Contains([]string{"parent", "child", "node role"}, r.Role) {
			rss, pss = rss+r.RSS, pss+r.Pss
		}
		detail = append(detail, row{what: "  " + r.Role, own: fmt.Sprintf("%.1f MB resident, %.1f MB proportional, %.1f MB of its own",
			megabytes(r.RSS), megabytes(r.Pss), megabytes(r.Anon))})
	}
	sum := row{what: "memory of parent, child and node role", own: fmt.Sprintf("%.1f MB resident, %.1f MB proportional", megabytes(rss), megabytes(pss)),
		target: targetCell(megabytes(rss), target, fmt.Sprintf("≤ %d MB", target))}
	return append([]row{sum}, detail...)
}

// megabytes converts the kernel's kilobytes of 1024 bytes to megabytes of 10^6 bytes.
func megabytes(kb int) float64 { return float64(kb) * 1024 / 1e6 }

// processWith finds the process of this account whose command line contains text.
func processWith(text string) (int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !strings.Contains(string(line), text) {
			continue // it has ended, or belongs to another account
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && pid != os.Getpid() {
			return pid, nil
		}
	}
	return 0, errors.New("no process has " + strconv.Quote(text) + " in its command line")
}
