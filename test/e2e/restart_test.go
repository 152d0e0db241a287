package e2e

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// oncePort is the node port of onceManifest.
const oncePort = 30120

// onceManifest is a Service whose pod is ready in the first run of the node, and not in the second one.
var onceManifest = fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: once, labels: {app: once}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: d, emptyDir: {}}]
  containers:
  - name: server
    image: rootlessnode.test/busybox:1
    command: [sh, -c, "test ! -e /d/first || touch /d/second; touch /d/first; exec netprobe serve 8080"]
    readinessProbe: {exec: {command: [sh, -c, "test -e /d/first && test ! -e /d/second"]}, periodSeconds: 1}
    volumeMounts: [{name: d, mountPath: /d}]
---
apiVersion: v1
kind: Service
metadata: {name: once}
spec:
  type: NodePort
  selector: {app: once}
  ports: [{port: 80, targetPort: 8080, nodePort: %d}]
`, oncePort)

// countAccepted counts the connections that a port of the host's loopback accepts, until stop is called.
func countAccepted(t *testing.T, port int) (stop func() int64) {
	t.Helper()
	var accepted atomic.Int64
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-quit:
				tick.Stop()
				return
			case <-tick.C:
				if c, err := net.Dial("tcp", loopback.port(port)); err == nil {
					accepted.Add(1)
					_ = c.Close()
				}
			}
		}
	}()
	return func() int64 { close(quit); <-done; return accepted.Load() }
}

// unusedAddresses checks that connections to pod addresses that do not exist end inside the node.
func (n *testNode) unusedAddresses() {
	n.t.Helper()
	for _, ip := range []string{"10.42.0.250", "10.42.7.7"} {
		out, stderr, code := n.try(podLimit, "exec", "--", "curl", "-sS", "--max-time", "10", "http://"+ip+":8080/")
		assert.Assert(n.t, code != 0 && out == "", "%s%s", out, stderr)
	}
	route := n.run(podLimit, "exec", "--", "ip", "route", "show", "type", "unreachable")
	assert.Assert(n.t, cmp.Contains(strings.TrimSpace(route), "10.42.0.0/16"))
}
