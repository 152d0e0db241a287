package e2e

import (
	"strings"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// shellAndCompletion runs a script in the node's shell, and completes arguments of kubectl with objects of the cluster.
func (n *testNode) shellAndCompletion() {
	n.env = append(n.env, "SHELL=/bin/sh")
	assert.Equal(n.t, n.run(podLimit, "shell", "-c", `echo "$1 $ROOTLESSNODE_NAME"; id -u`, "zero", "one"), "one "+n.name+"\n0\n")
	assert.Equal(n.t, n.run(podLimit, "shell", "echo", "-n", "x"), "x")

	complete := func(words string) string {
		return n.run(podLimit, append([]string{"__complete"}, strings.Split(words, " ")...)...)
	}
	assert.Assert(n.t, cmp.Contains(complete("--name "), n.name+"\n"))
	assert.Assert(n.t, cmp.Contains(complete("kubectl -n kube-sys"), "kube-system\n"))
	assert.Assert(n.t, cmp.Contains(complete("kubectl -n kube-system get pods coredns-"), "coredns-"))
	assert.Assert(n.t, cmp.Contains(complete("kubectl get --sh"), "--show-labels"))
}
