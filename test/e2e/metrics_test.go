package e2e

import (
	"fmt"
	"strings"

	"gotest.tools/v3/assert"
)

// autoscaled is a Deployment that uses more CPU time than it requests, with a HorizontalPodAutoscaler.
const autoscaled = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: autoscaled}
spec:
  selector: {matchLabels: {app: autoscaled}}
  template:
    metadata: {labels: {app: autoscaled}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: ` + testImage + `
        imagePullPolicy: Never
        command: [sh, -c, "while :; do sleep 0.05; done"]
        resources: {requests: {cpu: 1m}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: autoscaled}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: autoscaled}
  minReplicas: 1
  maxReplicas: 2
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
`

// autoscale begins what metrics checks later, because the autoscaler needs half a minute.
func (n *testNode) autoscale() { n.apply(autoscaled) }

// metrics checks that usage is measured, also on a host without the memory controller, and that workloads are scaled by it.
func (n *testNode) metrics() {
	eventually(n.t, podLimit, "the Deployment is scaled by its CPU usage", func() error {
		if replicas := n.kubectl("get", "deployment", "autoscaled", "-o", "jsonpath={.spec.replicas}"); replicas != "2" {
			return fmt.Errorf("%s replicas: %s", replicas, n.kubectl("get", "hpa", "autoscaled"))
		}
		return nil
	})
	node := strings.Fields(n.kubectl("top", "nodes", "--no-headers"))
	assert.Assert(n.t, len(node) == 5 && node[1] != "0m" && node[3] != "0Mi", node)
	pods := strings.Fields(n.kubectl("top", "pods", "--no-headers", "-n", "kube-system", "-l", "k8s-app=kube-dns"))
	assert.Assert(n.t, len(pods) == 3 && strings.HasPrefix(pods[0], "coredns-") && pods[2] != "0Mi", pods)
	assert.Equal(n.t, n.kubectl("get", "apiservice", "v1beta1.metrics.k8s.io", "-o", "jsonpath={.spec.insecureSkipTLSVerify}"), "", "verified")

	own := n.run(podLimit, "metrics")
	for _, want := range []string{
		`rootlessnode_component_ready{component="kubelet"} 1`, `rootlessnode_condition{condition="ClusterDNS"} 1`,
		`rootlessnode_component_cpu_seconds_total{component="parent"}`,
	} {
		assert.Check(n.t, strings.Contains(own, want), "%s is missing:\n%s", want, own)
	}
	n.kubectl("delete", "hpa/autoscaled", "deployment/autoscaled")
}
