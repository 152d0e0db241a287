package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gotest.tools/v3/assert"
)

// inventory lists the parts of a node at rest.
type inventory struct {
	// Things have the number of each kind of thing, which must be the same again.
	things map[string]int
	// sizes have values that vary: descriptors and resident memory in KiB.
	sizes map[string]int
}

// inventory returns the present parts of the node.
func (s *soak) inventory() inventory {
	s.t.Helper()
	in := inventory{map[string]int{}, map[string]int{}}
	st := s.status()
	for _, p := range processes(s.name) {
		_, cmdline, _ := strings.Cut(p, " ")
		argv0, _, _ := strings.Cut(cmdline, " ")
		in.things["process "+filepath.Base(argv0)]++
	}
	for _, p := range st.Ports {
		in.things[fmt.Sprintf("port %s %s %s", p.Address(), p.Owner, p.State)]++
	}
	for _, c := range st.Conditions {
		in.things[fmt.Sprintf("condition %s %v", c.Type, c.OK)]++
	}
	for line := range strings.Lines(s.kubectl("get", "pods", "-A", "--no-headers", "-o", "custom-columns=P:.status.phase,N:.metadata.namespace")) {
		in.things["pod "+strings.Join(strings.Fields(line), " ")]++
	}
	for line := range strings.Lines(s.inside("ip", "-o", "link")) {
		_, rest, _ := strings.Cut(line, ": ")
		name, _, _ := strings.Cut(rest, ":")
		name, _, _ = strings.Cut(name, "@")
		in.things["device "+strings.TrimRight(name, "0123456789abcdef")]++
	}
	s.countMounts(in.things)
	s.countCgroups(st.Cgroup.Path, in.things)
	files, err := os.ReadDir(st.RuntimeDir)
	assert.NilError(s.t, err)
	for _, f := range files {
		in.things["file "+f.Name()]++
	}
	for role, pid := range map[string]int{"parent": st.ParentPID, "child": st.ChildPID, "node role": nodeRole(s.t, st.ChildPID)} {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		assert.NilError(s.t, err)
		in.sizes["descriptors of the "+role] = len(fds)
		text := read(s.t, fmt.Sprintf("/proc/%d", pid), "status")
		_, rss, _ := strings.Cut(text, "VmRSS:")
		in.sizes["memory of the "+role], err = strconv.Atoi(strings.Fields(rss)[0])
		assert.NilError(s.t, err)
	}
	return in
}

// countMounts counts the mounts by type. containerd keeps the shm of a sandbox that ended without a stop until it removes the sandbox, and
// the kubelet keeps the last ended sandbox of each pod. So a shm counts only if containerd does not know the sandbox.
func (s *soak) countMounts(things map[string]int) {
	s.t.Helper()
	mounts := s.inside("cat", "/proc/self/mountinfo")
	known := s.inside(filepath.Join(components(), "ctr"), "-a", "/run/containerd/containerd.sock", "-n", "k8s.io", "containers", "ls", "-q")
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		dir, isShm := strings.CutSuffix(strings.Fields(before)[4], "/shm")
		if !isShm || !strings.Contains(known, filepath.Base(dir)) {
			things["mount "+strings.Fields(after)[0]]++
		}
	}
}

// countCgroups counts the cgroups of components and pods.
func (s *soak) countCgroups(root string, things map[string]int) {
	s.t.Helper()
	for _, pattern := range []string{"*", "system/*", "kubepods/*", "kubepods/pod*/*", "kubepods/*/pod*", "kubepods/*/pod*/*"} {
		dirs, err := filepath.Glob(filepath.Join(root, pattern, "cgroup.procs"))
		assert.NilError(s.t, err)
		things["cgroup "+pattern] = len(dirs)
	}
}

// compare waits until the node is as it was before, and then compares what varies.
func (s *soak) compare(before inventory) {
	s.t.Helper()
	var now inventory
	eventually(s.t, podLimit, "the node is as before", func() error {
		now = s.inventory()
		if !maps.Equal(now.things, before.things) {
			return fmt.Errorf("differences: %s", differences(before.things, now.things))
		}
		return nil
	})
	for what, size := range before.sizes {
		s.t.Logf("%s: %d, now %d", what, size, now.sizes[what])
		assert.Check(s.t, now.sizes[what] <= size*3/2+20, "%s: %d, now %d", what, size, now.sizes[what])
	}
}

func differences(before, now map[string]int) string {
	all := maps.Clone(before)
	maps.Copy(all, now)
	var out []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if before[k] != now[k] {
			out = append(out, fmt.Sprintf("%s: %d before, %d now", k, before[k], now[k]))
		}
	}
	return strings.Join(out, "; ")
}
