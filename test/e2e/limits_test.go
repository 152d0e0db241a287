package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// limits requires that the controllers cpu, memory and pids are delegated.
var limits = testutil.Requirement{Name: "limits", Check: func() error { return lacks("cpu", "memory", "pids") }}

// lacks returns an error if one of the controllers is not delegated.
func lacks(controllers ...string) error {
	var o cgroupv2.Options
	h, err := cgroupv2.DetectHost(o)
	if err != nil {
		return err
	}
	d, err := cgroupv2.Detect(h, o)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if slices.Contains(d.Missing, c) {
			return fmt.Errorf("the cgroup controllers %v are not delegated", d.Missing)
		}
	}
	return nil
}

// Caps of the node under test, and the limits of a pod. A smaller machine lowers the caps.
const (
	nodeCPU    = "1500m"
	nodeMemory = "3Gi"
	nodePids   = 3000
	podPids    = 50
)

const limitedManifest = `
apiVersion: v1
kind: Pod
metadata: {name: limited}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: rootlessnode.test/busybox:1
    command: [sleep, "3600"]
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: rootlessnode.test/busybox:1
    # One buffer of 128 MiB, written to as a whole.
    command: [busybox, dd, if=/dev/zero, of=/dev/null, bs=128M, count=1]
    resources: {limits: {memory: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: forks}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: rootlessnode.test/busybox:1
    # The shell that cannot fork ends; what it made stays, and the first one needs no fork for its last command.
    command: [sh, -c, "(while true; do sleep 3600 & done); exec sleep 3600"]
`

// TestLimits checks that the kernel enforces the limits of pods and the caps of the node, without an effect on the node's components.
func TestLimits(t *testing.T) {
	t.Parallel()
	testutil.Require(t, limits)
	n := newNode(t, "e2e-limits", "--set", "resources.cpu="+nodeCPU, "--set", "resources.memory="+nodeMemory,
		"--set", fmt.Sprintf("resources.pids=%d", nodePids), "--set", fmt.Sprintf("resources.podPids=%d", podPids))
	n.up()
	n.importImage()
	before := restarts(n.status())
	n.apply(limitedManifest)
	n.waitPod("limited")
	path := n.status().Cgroup.Path
	machine, err := hostinfo.ReadMachine("/")
	assert.NilError(t, err)
	least := layout.Limits{CPUMilli: 1500, MemoryBytes: 3 << 30, Pids: nodePids}.Least(
		layout.Limits{CPUMilli: int64(machine.CPUs) * 1000, MemoryBytes: machine.MemoryBytes, Pids: machine.Tasks})
	sub := func(name string, f func(n *testNode)) { t.Run(name, func(t *testing.T) { f(n.in(t)) }) }

	sub("the node is capped", func(n *testNode) {
		assert.Equal(n.t, read(n.t, path, "cpu.max"), "150000 100000")
		assert.Equal(n.t, read(n.t, path, "memory.max"), "3221225472")
		assert.Equal(n.t, read(n.t, path, "pids.max"), strconv.Itoa(nodePids))
		s := n.status()
		assert.Equal(n.t, len(s.Cgroup.UnenforcedSettings), 0, "%v", s.Cgroup.UnenforcedSettings)
		assert.Assert(n.t, s.Cgroup.Ceiling.CPUMilli >= least.CPUMilli && s.Cgroup.Ceiling.CPUMilli <= 1500, "%+v", s.Cgroup.Ceiling)
	})
	sub("the scheduler knows the caps", func(n *testNode) {
		const of = "jsonpath={.items[0].status.allocatable.cpu} {.items[0].status.allocatable.memory}"
		cpu, memory, _ := strings.Cut(n.kubectl("get", "nodes", "-o", of), " ")
		c, err := resource.ParseQuantity(cpu)
		assert.NilError(n.t, err)
		assert.Equal(n.t, c.MilliValue(), least.CPUMilli-250, "250m are for the components")
		q, err := resource.ParseQuantity(memory)
		assert.NilError(n.t, err)
		assert.Equal(n.t, q.Value(), least.MemoryBytes-1<<30-100<<20, "1 GiB is for the components, at 100 MiB pods are evicted")
	})
	sub("the kubelet limits all pods together", func(n *testNode) {
		pods := filepath.Join(path, "kubepods")
		eventually(n.t, podLimit, "the limits of kubepods", func() error {
			got := read(n.t, pods, "memory.max") + " " + read(n.t, pods, "pids.max")
			const page = 4096 // the kernel rounds down to pages
			if want := fmt.Sprintf("%d %d", (least.MemoryBytes-1<<30)/page*page, least.Pids-1024); got != want {
				return fmt.Errorf("memory.max and pids.max are %s, not %s", got, want)
			}
			return nil
		})
	})
	sub("limits and requests are in the kernel", func(n *testNode) {
		inside := func(file string) string {
			return strings.TrimSpace(n.kubectl("exec", "limited", "--", "cat", "/sys/fs/cgroup/"+file))
		}
		assert.Equal(n.t, inside("cpu.max"), "20000 100000")
		assert.Equal(n.t, inside("memory.max"), "67108864")
		weight, err := strconv.Atoi(inside("cpu.weight"))
		assert.NilError(n.t, err)
		assert.Assert(n.t, weight > 1 && weight < 100, "cpu.weight %d", weight) // the conversion from 102 shares differs between versions of runc
		dir := n.podCgroup("limited")
		assert.Equal(n.t, read(n.t, dir, "pids.max"), strconv.Itoa(podPids))
		assert.Equal(n.t, read(n.t, dir, "memory.max"), "67108864")
		assert.Equal(n.t, read(n.t, dir, "cpu.max"), "20000 100000")
	})
	sub("a pod out of memory is killed and reports it", func(n *testNode) {
		eventually(n.t, podLimit, "the pod greedy ends", func() error {
			const state = "jsonpath={.status.phase} {.status.containerStatuses[0].state.terminated.reason}"
			if got := n.kubectl("get", "pod", "greedy", "-o", state); got != "Failed OOMKilled" {
				return errors.New(got)
			}
			return nil
		})
	})
	sub("a fork bomb stops at its limit", func(n *testNode) {
		var dir string
		eventually(n.t, podLimit, "refused forks", func() (err error) {
			if dir, err = n.findPodCgroup("forks"); err != nil {
				return err
			}
			events := refusedForks(dir)
			if events == 0 {
				return errors.New("none yet")
			}
			return nil
		})
		current, err := strconv.Atoi(read(n.t, dir, "pids.current"))
		assert.NilError(n.t, err)
		assert.Assert(n.t, current <= podPids, "%d processes", current)
	})
	sub("the node is not affected", func(n *testNode) {
		s := n.status()
		assert.Equal(n.t, s.State, status.NodeReady, s.Reason)
		assert.DeepEqual(n.t, restarts(s), before)
		assert.Equal(n.t, n.kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.conditions[?(@.type=='Ready')].status}"), "True")
		assert.Equal(n.t, n.kubectl("get", "pod", "limited", "-o", "jsonpath={.status.phase}"), "Running")
	})
	n.down()
	noTrace(t, n.name)
	_, err = os.Stat(path)
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

// restarts returns the number of restarts of each component.
func restarts(s status.Status) map[string]int {
	out := map[string]int{}
	for _, c := range s.Components {
		out[c.Name] = c.Restarts
	}
	return out
}

// staticManifest is a Guaranteed pod that requests a whole CPU.
const staticManifest = `
apiVersion: v1
kind: Pod
metadata: {name: pinned}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: rootlessnode.test/busybox:1
    command: [sleep, "3600"]
    resources: {requests: {cpu: "1", memory: 32Mi}, limits: {cpu: "1", memory: 32Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: throttled}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: rootlessnode.test/busybox:1
    command: [sleep, "3600"]
    resources: {requests: {memory: 32Mi}, limits: {memory: 64Mi}}
`

// cpuset requires that the controller cpuset is delegated, and that the machine has more than one CPU.
var cpuset = testutil.Requirement{Name: "cpuset", Check: func() error {
	if err := lacks("cpuset"); err != nil {
		return err
	}
	if b, err := os.ReadFile("/sys/devices/system/cpu/online"); err != nil || strings.TrimSpace(string(b)) == "0" {
		return errors.New("the machine has one CPU")
	}
	return nil
}}

// TestOwnCPUs checks that the static CPU manager assigns a CPU exclusively to a pod, that memory.high is set, and that the next run can
// start without these settings.
func TestOwnCPUs(t *testing.T) {
	t.Parallel()
	testutil.Require(t, limits, cpuset)
	static := []string{"--set", "resources.cpuManager=static", "--set", "resources.memoryHighPercent=90"}
	n := newNode(t, "e2e-cpuset", static...)
	n.up()
	n.importImage()
	n.apply(staticManifest)
	n.waitPod("pinned")
	n.waitPod("throttled")
	inside := func(pod, file string) string {
		return strings.TrimSpace(n.kubectl("exec", pod, "--", "cat", "/sys/fs/cgroup/"+file))
	}
	own := inside("pinned", "cpuset.cpus")
	_, err := strconv.Atoi(own)
	assert.NilError(t, err, "want one CPU, cpuset.cpus is %q", own)
	eventually(t, podLimit, "other cgroups do not use that CPU", func() error {
		if shared := inside("throttled", "cpuset.cpus.effective"); shared == own || shared == "" {
			return fmt.Errorf("cpuset.cpus.effective is %q", shared)
		}
		return nil
	})
	high, err := strconv.Atoi(inside("throttled", "memory.high"))
	assert.NilError(t, err)
	assert.Assert(t, high > 32<<20 && high < 64<<20, "memory.high %d", high)
	n.down()
	n.args = append(n.args, "--set", "resources.cpuManager=none")
	n.up()
	n.waitPod("pinned")
}

func read(t *testing.T, dir, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, file))
	assert.NilError(t, err)
	return strings.TrimSpace(string(b))
}

// refusedForks returns the number of forks that the pids controller refused in a cgroup or below. Since Linux 6.12 pids.events counts
// them in the cgroup whose limit was reached; earlier kernels, and pids.events.local, count them in the cgroup of the process.
func refusedForks(dir string) int {
	total := 0
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // cgroups come and go
		}
		for _, file := range []string{"pids.events", "pids.events.local"} {
			b, err := os.ReadFile(filepath.Join(path, file))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(b)) {
				if count, ok := strings.CutPrefix(strings.TrimSpace(line), "max "); ok {
					n, _ := strconv.Atoi(count)
					total += n
				}
			}
		}
		return nil
	})
	return total
}

// podCgroup returns the path of a pod's cgroup on the host.
func (n *testNode) podCgroup(pod string) string {
	n.t.Helper()
	dir, err := n.findPodCgroup(pod)
	assert.NilError(n.t, err)
	return dir
}

func (n *testNode) findPodCgroup(pod string) (string, error) {
	n.t.Helper()
	uid := n.kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
	var found string
	err := filepath.WalkDir(n.status().Cgroup.Path, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "pod"+uid {
			found = path
			return fs.SkipAll
		}
		return nil // cgroups come and go
	})
	if err == nil && found == "" {
		err = fmt.Errorf("no cgroup of pod %s (%s)", pod, uid)
	}
	return found, err
}
