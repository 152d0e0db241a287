package e2e

import (
	"slices"
	"strings"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// resolver checks that pods have the search domains of the host after those of the cluster.
func (n *testNode) resolver() {
	host, err := hostinfo.ReadResolver(hostinfo.ResolvConf)
	assert.NilError(n.t, err)
	n.apply(`{apiVersion: v1, kind: Pod, metadata: {name: resolver}, spec: {terminationGracePeriodSeconds: 1, containers: [
	  {name: c, image: "rootlessnode.test/busybox:1", command: [sleep, "1000000"]}]}}`)
	n.waitPod("resolver")
	pod := hostinfo.ParseResolver(n.kubectl("exec", "resolver", "--", "cat", "/etc/resolv.conf"))
	n.kubectl("delete", "pod", "resolver", "--wait=false")
	cluster := []string{"default.svc.cluster.local", "svc.cluster.local", "cluster.local"}
	assert.DeepEqual(n.t, pod.Search, slices.Concat(cluster, host.Search))
	inside := hostinfo.ParseResolver(n.run(podLimit, "exec", "--", "cat", hostinfo.ResolvConf))
	assert.DeepEqual(n.t, inside.Search, host.Search)
	assert.DeepEqual(n.t, inside.Options, host.Options)
	assert.Assert(n.t, strings.Join(inside.Servers, " ") != "")
}
