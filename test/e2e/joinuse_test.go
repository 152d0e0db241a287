package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gotest.tools/v3/assert"
)

// joinedPod is an echo pod on one node, and a Service that selects only that pod.
const joinedPod = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: echo, only: %[1]s}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 1
  containers:
  - name: server
    image: rootlessnode.test/busybox:1
    command: [/bin/sh, -c, "echo serving; exec netprobe serve 8080"]
    readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  selector: {only: %[1]s}
  ports: [{name: t, port: 8080}, {name: u, protocol: UDP, port: 8080}]
---
`

// apply creates a pod on every node, and a node port for all of the pods.
func (c *joined) apply() {
	c.t.Helper()
	c.control().apply(service("everywhere", "NodePort", fmt.Sprintf(
		"{name: t, port: 8080, nodePort: %d}, {name: u, protocol: UDP, port: 8080, nodePort: %[1]d}", portEverywhere)))
	for i := range c.nodes {
		c.applyPod(i)
	}
	for i := range c.nodes {
		c.control().waitPod(podName(i))
	}
}

func (c *joined) applyPod(i int) {
	c.t.Helper()
	c.control().apply(fmt.Sprintf(joinedPod, podName(i), objectName(i)))
}

// use runs the usual kubectl commands on the pods of every node, from the host with the control plane.
func (c *joined) use() {
	c.t.Helper()
	n, host := c.control(), c.hosts[0]
	for i := range c.nodes {
		pod := podName(i)
		assert.Equal(c.t, n.kubectl("logs", pod), "serving\n")
		assert.Equal(c.t, strings.TrimSpace(n.kubectl("exec", pod, "--", "cat", "/etc/hostname")), pod)
		n.portForward(pod, func(port int) {
			eventually(c.t, podLimit, "a forward to "+pod, func() error {
				return getBy(host.dial, "http://"+loopback.port(port)+"/", "hello from "+pod)
			})
		})
		file := filepath.Join(hostDir(c.t), "copied")
		n.kubectl("cp", pod+":/etc/hostname", file)
		b, err := os.ReadFile(file)
		assert.NilError(c.t, err)
		assert.Equal(c.t, strings.TrimSpace(string(b)), pod)
		n.kubectl("cp", file, pod+":/tmp-copied")
		assert.Equal(c.t, strings.TrimSpace(n.kubectl("exec", pod, "--", "cat", "/tmp-copied")), pod)
	}
}

// trafficScript sends payloads of several sizes over both protocols to each of its arguments.
const trafficScript = `for to in %s; do for by in tcp udp; do for size in 64 1400 8000; do netprobe echo $by://$to:8080/$size; done; done; done`

// traffic checks that each pod reaches every other pod by the pod's address, its Service's address and its Service's name.
func (c *joined) traffic() {
	c.t.Helper()
	n := c.control()
	for to := range c.nodes {
		targets := []string{
			n.kubectl("get", "pod", podName(to), "-o", "jsonpath={.status.podIP}"),
			n.kubectl("get", "service", podName(to), "-o", "jsonpath={.spec.clusterIP}"),
			podName(to) + ".default.svc.cluster.local",
		}
		for from := range c.nodes {
			if from == to {
				continue
			}
			eventually(c.t, podLimit, podName(from)+" reaches "+podName(to), func() error {
				out, stderr, code := n.try(podLimit, "kubectl", "exec", podName(from), "--", "/bin/sh", "-ec",
					fmt.Sprintf(trafficScript, strings.Join(targets, " ")))
				if code != 0 {
					return fmt.Errorf("exit %d: %s%s", code, out, stderr)
				}
				return nil
			})
		}
	}
}

// nodePorts checks that a node port answers on the addresses of all hosts, for clients on each host, and that pods of all nodes answer.
func (c *joined) nodePorts() {
	c.t.Helper()
	for _, from := range c.hosts {
		for _, at := range c.hosts {
			for _, udp := range []bool{false, true} {
				eventually(c.t, portsLimit, fmt.Sprintf("the node port of %s, from %s, by UDP %v", at.ip, from.ip, udp), func() error {
					return from.answers(at.ip, portEverywhere, udp)
				})
			}
		}
	}
	for i := range c.nodes {
		eventually(c.t, portsLimit, podName(i)+" answers the node port", func() error {
			return getBy(c.hosts[0].dial, "http://"+c.hosts[0].ip.port(portEverywhere)+"/", "hello from "+podName(i))
		})
	}
}
