package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// stopManifest has a pod that logs how it is stopped, a pod that ignores the stop signal, and a Job whose container must run twice.
// %[1]q is a directory of the host.
const stopManifest = `
apiVersion: v1
kind: Pod
metadata: {name: database}
spec:
  terminationGracePeriodSeconds: 600
  volumes: [{name: d, hostPath: {path: %[1]q, type: Directory}}]
  initContainers:
  - name: proxy
    image: rootlessnode.test/busybox:1
    restartPolicy: Always
    command: [/bin/sh, -c, "trap 'echo sidecar >>/d/log; exit 0' TERM; while true; do sleep 0.2; done"]
    volumeMounts: [{name: d, mountPath: /d}]
  containers:
  - name: server
    image: rootlessnode.test/busybox:1
    command:
    - /bin/sh
    - -c
    - |
      (trap 'echo helper >>/d/log; exit 0' TERM; while true; do sleep 0.2; done) &
      trap 'echo main >>/d/log; sleep 2; echo saved >>/d/log; exit 0' TERM
      echo started >>/d/log
      while true; do sleep 0.2; done
    volumeMounts: [{name: d, mountPath: /d}]
    lifecycle:
      preStop:
        exec:
          command: [/bin/sh, -c, "echo hook >>/d/log; netprobe dial kubernetes.default.svc.cluster.local:443 2>>/d/log && echo reached >>/d/log; sleep 1; exit 3"]
---
apiVersion: v1
kind: Pod
metadata: {name: deaf}
spec:
  terminationGracePeriodSeconds: 3
  containers:
  - name: deaf
    image: rootlessnode.test/busybox:1
    command: [/bin/sh, -c, "trap '' TERM; while true; do sleep 0.2; done"]
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      volumes: [{name: d, hostPath: {path: %[1]q, type: Directory}}]
      containers:
      - name: once
        image: rootlessnode.test/busybox:1
        command: [/bin/sh, -c, "[ ! -e /d/interrupted ] || exit 0; echo >/d/interrupted; trap 'exit 0' TERM; while true; do sleep 0.2; done"]
        volumeMounts: [{name: d, mountPath: /d}]
`

// stopsPods checks that down stops each pod as its spec says, and that the next up starts the pods again.
func (n *testNode) stopsPods() {
	n.t.Helper()
	dir := n.t.TempDir()
	n.apply(fmt.Sprintf(stopManifest, dir))
	log := func() []string {
		b, err := os.ReadFile(filepath.Join(dir, "log"))
		assert.NilError(n.t, err)
		return strings.Fields(string(b))
	}
	for _, pod := range []string{"database", "deaf"} {
		n.waitPod(pod)
	}
	eventually(n.t, podLimit, "the Job runs", func() error {
		_, err := os.Stat(filepath.Join(dir, "interrupted"))
		return err
	})
	n.kubectl("-n", "kube-system", "wait", "--for=condition=Available", "deployment/coredns", "--timeout", podLimit.String())
	_, stderr, code := n.try(downLimit, "down")
	assert.Equal(n.t, code, 0, stderr)
	assert.Check(n.t, cmp.Contains(stderr, "waiting for pods: "), "a stop of more than three seconds")
	assert.DeepEqual(n.t, log(), []string{"started", "hook", "reached", "main", "saved", "sidecar"})
	noTrace(n.t, n.name)

	n.up()
	eventually(n.t, podLimit, "the database is started again", func() error {
		if l := log(); l[len(l)-1] != "started" {
			return fmt.Errorf("%v", l)
		}
		return nil
	})
	n.kubectl("wait", "--for=condition=Complete", "job/once", "--timeout", podLimit.String())
	n.kubectl("delete", "pod/database", "pod/deaf", "job/once", "--grace-period=1")
}
