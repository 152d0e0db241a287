package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// delegation: a node of ours would get a cgroup, from whoever it is.
func delegation() (cgroupv2.Delegation, error) {
	var o cgroupv2.Options
	h, err := cgroupv2.DetectHost(o)
	if err != nil {
		return cgroupv2.Delegation{}, err
	}
	return cgroupv2.Detect(h, o)
}

// delegated stands for testutil.DelegatedCgroup: a user manager that can be asked is as good as a directory of ours.
var delegated = testutil.Requirement{Name: testutil.DelegatedCgroup.Name, Check: func() error { _, err := delegation(); return err }}

// limits: the controllers that enforce pods' limits are delegated.
var limits = testutil.Requirement{Name: "limits", Check: func() error {
	d, err := delegation()
	if err != nil {
		return err
	}
	for _, c := range d.Missing {
		if c != "cpuset" {
			return fmt.Errorf("the controllers %v are not delegated", d.Missing)
		}
	}
	return nil
}}

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
    command: [sh, -c, "tail /dev/zero"]
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
    command: [sh, -c, "i=0; while [ $i -lt 200 ]; do sleep 3600 & i=$((i+1)); done; wait"]
`

// podPids is the most processes that a pod may have in this test.
const podPids = 50

// TestLimits: what pods ask for is in the kernel, and it bites without hurting the node.
func TestLimits(t *testing.T) {
	t.Parallel()
	testutil.Require(t, limits)
	n := newNode(t, "e2e-limits", "--set", fmt.Sprintf("kubelet.extraConfig.podPidsLimit=%d", podPids))
	n.up()
	n.importImage()
	n.apply(limitedManifest)
	n.waitPod("limited")
	sub := func(name string, f func(n *testNode)) { t.Run(name, func(t *testing.T) { f(n.in(t)) }) }

	sub("limits and requests are in the kernel", func(n *testNode) {
		inside := func(file string) string {
			return strings.TrimSpace(n.kubectl("exec", "limited", "--", "cat", "/sys/fs/cgroup/"+file))
		}
		assert.Equal(n.t, inside("cpu.max"), "20000 100000")
		assert.Equal(n.t, inside("memory.max"), "67108864")
		weight, err := strconv.Atoi(inside("cpu.weight"))
		assert.NilError(n.t, err)
		assert.Assert(n.t, weight > 1 && weight < 100, "cpu.weight %d", weight) // how 102 shares come to it has changed once
		dir := n.podCgroup("limited")
		assert.Equal(n.t, read(n.t, filepath.Join(dir, "pids.max")), strconv.Itoa(podPids))
		assert.Equal(n.t, read(n.t, filepath.Join(dir, "memory.max")), "67108864")
	})
	sub("a pod out of memory is killed and says so", func(n *testNode) {
		eventually(n.t, podLimit, "the pod greedy ends", func() error {
			const path = "jsonpath={.status.phase} {.status.containerStatuses[0].state.terminated.reason}"
			if got := n.kubectl("get", "pod", "greedy", "-o", path); got != "Failed OOMKilled" {
				return errors.New(got)
			}
			return nil
		})
	})
	sub("a fork bomb stops at its limit", func(n *testNode) {
		n.waitPod("forks")
		dir := n.podCgroup("forks")
		eventually(n.t, podLimit, "forks that were refused", func() error {
			events := read(n.t, filepath.Join(dir, "pids.events"))
			if count, _ := strings.CutPrefix(events, "max "); count == "0" || count == events {
				return errors.New(events)
			}
			return nil
		})
		current, err := strconv.Atoi(read(n.t, filepath.Join(dir, "pids.current")))
		assert.NilError(n.t, err)
		assert.Assert(n.t, current <= podPids, "%d processes", current)
	})
	sub("the node does not mind", func(n *testNode) {
		s := n.status()
		assert.Equal(n.t, s.State, status.NodeReady, s.Reason)
		for _, c := range s.Components {
			assert.Equal(n.t, c.Restarts, 0, c.Name)
		}
	})
	path := n.status().Cgroup.Path
	n.down()
	noTrace(t, n.name)
	_, err := os.Stat(cgroupDir(t, path))
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	assert.NilError(t, err)
	return strings.TrimSpace(string(b))
}

// cgroupDir is where a path of status is on the host.
func cgroupDir(t *testing.T, path string) string {
	t.Helper()
	mount, err := testutil.Cgroup2Mount()
	assert.NilError(t, err)
	if strings.HasPrefix(path, mount) {
		return path
	}
	return filepath.Join(mount, path)
}

// podCgroup is a pod's cgroup on the host.
func (n *testNode) podCgroup(pod string) string {
	n.t.Helper()
	uid := n.kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
	var found string
	err := filepath.WalkDir(cgroupDir(n.t, n.status().Cgroup.Path), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "pod"+uid {
			found = path
			return fs.SkipAll
		}
		return nil // cgroups come and go
	})
	assert.NilError(n.t, err)
	assert.Assert(n.t, found != "", "no cgroup of pod %s", uid)
	return found
}
