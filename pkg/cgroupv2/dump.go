package cgroupv2

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// dumpedFiles are the files whose content Dump writes.
var dumpedFiles = []string{
	"cgroup.type", "cgroup.controllers", "cgroup.subtree_control", "cgroup.events", "cgroup.freeze", "cgroup.max.descendants",
	"cpu.max", "cpu.weight", "cpuset.cpus.effective", "memory.current", "memory.max", "memory.high", "memory.min", "memory.events", "memory.swap.max",
	"pids.current", "pids.max", "pids.events", "io.max", "cpu.pressure", "memory.pressure", "io.pressure",
}

// Dump writes a description of the cgroup dir and of all cgroups below it: the settings and counters of each, and its processes with
// their command lines. It skips cgroups and processes that end meanwhile.
//
// Runs in: either.
func Dump(ctx context.Context, dir string, w io.Writer) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			if path == dir || !proc.Ended(err) {
				return err
			}
			return nil
		}
		if !e.IsDir() {
			return ctx.Err()
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		_, err = io.WriteString(w, "== "+name+"\n"+describeFiles(path)+describeProcesses(path))
		return err
	})
}

func describeFiles(dir string) string {
	var b strings.Builder
	for _, name := range dumpedFiles {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue // the controller is not enabled
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(lines, "; "))
	}
	return b.String()
}

func describeProcesses(dir string) string {
	pids, err := readPids(dir)
	if err != nil {
		return fmt.Sprintf("processes: %v\n", err)
	}
	var b strings.Builder
	for _, pid := range pids {
		s, err := proc.Host.Stat(pid)
		if err != nil {
			continue
		}
		args, _ := os.ReadFile(proc.Host.File(pid, "cmdline")) // empty for a process that has just ended
		fmt.Fprintf(&b, "process %d (%s), parent %d, state %c, %d threads, %d KiB: %s\n", pid, s.Name, s.Parent, s.State, s.Threads,
			s.ResidentPages*uint64(os.Getpagesize())>>10, strings.TrimRight(strings.ReplaceAll(string(args), "\x00", " "), " "))
	}
	return b.String()
}
