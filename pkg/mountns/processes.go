package mountns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process is one that a status tells of.
type Process struct {
	PID int `json:"pid"`
	// Command is its name in the kernel, at most 15 bytes.
	Command string `json:"command"`
	// Namespace is its mount namespace, as readlink says of /proc/PID/ns/mnt.
	Namespace string `json:"namespace"`
	// Daemon is which of kubelet and the runtimes it is; empty for others.
	Daemon string `json:"daemon,omitempty"`
}

// daemons must share one mount namespace.
var daemons = []string{"kubelet", "containerd", "crio"}

const procDir = "/proc"

// eachProcess calls fn with the directory in /proc of every process. What fn misses because the process has ended
// meanwhile is no error, nor what it may not see: that is of another user namespace.
func eachProcess(fn func(pid int, dir string) error) error {
	entries, err := os.ReadDir(procDir)
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		err = fn(pid, filepath.Join(procDir, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("look at process %d: %w", pid, err)
		}
	}
	return nil
}

// processesIn lists the processes that live in a mount namespace.
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

// daemonsOutside lists the daemons of this node that live in another mount namespace than id.
func daemonsOutside(id ID) ([]Process, error) {
	var all []Process
	err := eachProcess(func(pid int, dir string) error {
		its, err := idOf(dir + "/ns/mnt")
		if err != nil || its == id {
			return err
		}
		if ours, err := ofThisNode(dir); err != nil || !ours {
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

// ofThisNode tells whether a process is in our user and pid namespaces. Daemons of others are of another node: a rootless one, or
// one in a container.
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
	ours, err := idOf("/proc/self/ns/" + kind)
	return its == ours, err
}

func describeProcess(pid int, dir string, id ID) (Process, error) {
	comm, err := os.ReadFile(dir + "/comm")
	if err != nil {
		return Process{}, err
	}
	p := Process{PID: pid, Command: strings.TrimSuffix(string(comm), "\n"), Namespace: id.String()}
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

// someOf names the first few processes.
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
