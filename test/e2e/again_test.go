package e2e

import (
	"fmt"
	"strings"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// comingBack is a Service whose pod needs some seconds until it is ready.
const comingBack = `
apiVersion: v1
kind: Pod
metadata: {name: back, labels: {app: back}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: server
    image: rootlessnode.test/busybox:1
    command: [/bin/sh, -c, "sleep 2; mkdir /www; echo back > /www/index.html; exec httpd -f -p 8080 -h /www"]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: back}
spec:
  type: NodePort
  selector: {app: back}
  ports: [{port: 80, targetPort: 8080, nodePort: %d}]
`

// againPort is the node port of comingBack.
const againPort = 30470

// again checks what a running node answers to another `up`, and that a stopped node comes back with the flags of its last start and
// with its pods.
func (n *testNode) again() {
	out := n.run(podLimit, append([]string{"up"}, n.args...)...)
	assert.Assert(n.t, cmp.Contains(out, "is already running"))
	_, stderr, code := n.try(podLimit, "up", "--set", "network.mtu=9000")
	assert.Equal(n.t, code, 1)
	assert.Assert(n.t, cmp.Contains(stderr, "network.mtu: node \""+n.name+"\" is running with 1500, requested: 9000"))
	was := n.status().APIServer
	port := was[strings.LastIndexByte(was, ':')+1:]
	assert.Assert(n.t, cmp.Contains(n.run(podLimit, "config", "effective"), "  port: "+port+"    # flag\n"))

	n.apply(fmt.Sprintf(comingBack, againPort))
	n.waitPod("back")
	n.reloads()
	n.down()
	type effective struct {
		Origins map[string]config.Origin `json:"origins"`
	}
	stopped := answer[effective](n, "config", "effective")
	assert.Equal(n.t, stopped.Origins["api.port"], config.Origin{Kind: config.OriginFlag, Remembered: true})
	n.run(upLimit, "up", "--wait=pods")
	assert.Equal(n.t, n.kubectl("get", "nodes", "-o", "jsonpath={.items[*].status.capacity.pods}"), "77", "the reload is remembered")
	assert.NilError(n.t, get(fmt.Sprintf("http://127.0.0.1:%d/", againPort), "back"))
	assert.Equal(n.t, n.status().APIServer, was)
	n.kubectl("delete", "pod,service", "back", "--now")
	assert.Equal(n.t, n.status().State, status.NodeReady)
}

// reloads checks that a running node applies changes of its configuration, and restarts only components, not pods.
func (n *testNode) reloads() {
	out := n.run(podLimit, "reload", "--set", "kubelet.maxPods=77", "--set", fmt.Sprintf("ports.static=%d:%d", againPort+1, againPort))
	assert.Equal(n.t, out, "applied: ports.static, kubelet.maxPods\nrestarted: kubelet\n")
	eventually(n.t, podLimit, "the number of pods", func() error {
		if got := n.kubectl("get", "nodes", "-o", "jsonpath={.items[*].status.capacity.pods}"); got != "77" {
			return fmt.Errorf("got %q", got)
		}
		return get(fmt.Sprintf("http://127.0.0.1:%d/", againPort+1), "back")
	})
	_, stderr, code := n.try(podLimit, "reload", "--set", "network.allowHostLoopback=true")
	assert.Equal(n.t, code, 1)
	assert.Assert(n.t, cmp.Contains(stderr, "network.allowHostLoopback: cannot change while the node is running"))
	n.run(podLimit, "reload", "--unset", "network.allowHostLoopback")
	n.run(podLimit, "restart", "kube-scheduler")
	_, stderr, code = n.try(podLimit, "restart", "nothing")
	assert.Equal(n.t, code, 2)
	assert.Assert(n.t, cmp.Contains(stderr, "kube-scheduler"))
	assert.Equal(n.t, n.kubectl("get", "pod", "back", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"), "0")
}
