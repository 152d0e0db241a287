package mountns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// Process is a process in a Status.
type Process struct {
	PID int `json:"pid"`
	// Command is its name in the kernel, at most 15 bytes.
	Command string `json:"command"`
	// Namespace is its mount namespace, in the form of readlink /proc/PID/ns/mnt.
	Namespace string `json:"namespace"`
	// Daemon is the name of the kubelet or runtime, or empty for other processes.
	Daemon string `json:"daemon,omitempty"`
}

// daemons are the programs that must share one mount namespace.
var daemons = []string{"kubelet", "containerd", "crio"}

// eachProcess calls fn with the directory in /proc of every process. It ignores errors of fn because a process has ended
// meanwhile, or because it belongs to another user namespace and is not accessible.
func eachProcess(fn func(pid int, dir string) error) error {
	pids, err := proc.Host.PIDs()
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	slices.Sort(pids)
	for _, pid := range pids {
		err := fn(pid, proc.Host.File(pid, ""))
		if err != nil && !proc.Ended(err) && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("inspect process %d: %w", pid, err)
		}
	}
	return nil
}

// processesIn returns the processes in a mount namespace.
func processesIn(id ID) ([]Process, error) {
	var all []Process
	err := eachProcess(func(pid int, dir string) error {
		its, err := idOf(dir + "/ns/mnt")
		if err != nil || its != id {
			return err
		}
		p, err := describeProcess(pid, dir, its)
		all = append(all, p)
		return err
	})
	return all, err
}

// daemonsOutside returns the daemons of this node that are in another mount namespace than id.
func daemonsOutside(id ID) ([]Process, error) {
	var all []Process
	err := eachProcess(func(pid int, dir string) error {
		its, err := idOf(dir + "/ns/mnt")
		if err != nil || its == id {
			return err
		}
		if same, err := ofThisNode(dir); err != nil || !same {
			return err
		}
		p, err := describeProcess(pid, dir, its)
		if err == nil && p.Daemon != "" {
			all = append(all, p)
		}
		return err
	})
	return all, err
}

// ofThisNode reports whether a process is in the caller's user and pid namespaces. Daemons in other ones belong to another
// node, which is rootless or in a container.
func ofThisNode(dir string) (bool, error) {
	for _, kind := range []string{"user", "pid"} {
		if same, err := sameNamespace(dir, kind); err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

func sameNamespace(dir, kind string) (bool, error) {
	its, err := idOf(filepath.Join(dir, "ns", kind))
	if err != nil {
		return false, err
	}
	own, err := idOf("/proc/self/ns/" + kind)
	return its == own, err
}

func describeProcess(pid int, dir string, id ID) (Process, error) {
	name, err := proc.Host.Name(pid)
	if err != nil {
		return Process{}, err
	}
	p := Process{PID: pid, Command: name, Namespace: id.String()}
	names := []string{p.Command}
	if exe, err := os.Readlink(dir + "/exe"); err == nil { // kernel threads have none
		names = append(names, filepath.Base(strings.TrimSuffix(exe, " (deleted)")))
	}
	if line, err := os.ReadFile(dir + "/cmdline"); err == nil {
		word, _, _ := strings.Cut(string(line), "\x00")
		names = append(names, filepath.Base(word))
	}
	for _, d := range daemons {
		if slices.Contains(names, d) {
			p.Daemon = d
			break
		}
	}
	return p, nil
}

// someOf returns the names of the first few processes.
func someOf(procs []Process) string {
	const few = 5
	var words []string
	for i, p := range procs {
		if i == few {
			words = append(words, fmt.Sprintf("and %d more", len(procs)-few))
			break
		}
		words = append(words, fmt.Sprintf("%s (%d)", p.Command, p.PID))
	}
	return strings.Join(words, ", ")
}
