package e2e

import (
	"os/exec"
	"strings"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// crun requires crun on PATH.
var crun = testutil.Requirement{Name: "crun", Check: func() error { _, err := exec.LookPath("crun"); return err }}

// runWithCrun runs a pod with limits by crun, which the node finds on PATH.
func (n *testNode) runWithCrun() {
	testutil.Require(n.t, crun)
	assert.Equal(n.t, n.kubectl("get", "runtimeclass", "crun", "-o", "jsonpath={.handler}"), "crun")
	n.apply(strings.ReplaceAll(`
apiVersion: v1
kind: Pod
metadata: {name: by-crun}
spec:
  runtimeClassName: crun
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: IMAGE, command: [sleep, "1000"], resources: {limits: {cpu: 200m, memory: 64Mi}}}
`, "IMAGE", testImage))
	n.t.Cleanup(func() { n.kubectl("delete", "pod", "--now", "by-crun") })
	n.waitPod("by-crun")
	assert.Equal(n.t, n.kubectl("exec", "by-crun", "--", "echo", "inside"), "inside\n")
	// crun and runc keep the state of a container in different files.
	id := n.kubectl("get", "pod", "by-crun", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	_, id, _ = strings.Cut(id, "://")
	state := n.run(podLimit, "exec", "--", "crun", "--root", "/run/containerd/runc/k8s.io", "state", id)
	assert.Assert(n.t, strings.Contains(state, `"status": "running"`), state)
}
