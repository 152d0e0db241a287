package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// awaitCondition waits until the condition is as described.
func (n *testNode) awaitCondition(kind, what string, is func(status.Condition) bool) status.Condition {
	n.t.Helper()
	var last status.Condition
	eventually(n.t, podLimit, kind+" "+what, func() error {
		s := n.status()
		c := s.Condition(kind)
		if c == nil {
			return fmt.Errorf("no condition %s", kind)
		}
		if last = *c; !is(last) {
			return fmt.Errorf("%+v", last)
		}
		return nil
	})
	return last
}

func isTrue(c status.Condition) bool { return c.OK && !c.Warning }

// conditions checks the conditions of a node that is used, with the pod web, and that deleted objects of the node come back.
func (n *testNode) conditions() {
	n.t.Helper()
	sub := func(name string, f func(n *testNode)) { n.t.Run(name, func(t *testing.T) { f(n.in(t)) }) }
	sub("all conditions are true", func(n *testNode) {
		s := n.status()
		assert.Equal(n.t, s.State, status.NodeReady, s.Reason)
		for _, kind := range []string{
			status.ConditionNodeReady, status.ConditionNodePressure, status.ConditionClusterDNS, status.ConditionContainerRuntime, status.ConditionDisk,
		} {
			c := s.Condition(kind)
			assert.Assert(n.t, c != nil && isTrue(*c), "%s: %+v", kind, c)
		}
	})
	sub("a cluster without DNS is degraded", (*testNode).withoutDNS)
	sub("deleted objects come back", (*testNode).deletedObjects)
	sub("an invalid configuration of the DNS is reported", (*testNode).invalidDNS)
	sub("a deleted Node comes back", (*testNode).deletedNode)
}

func (n *testNode) withoutDNS() {
	n.t.Helper()
	n.kubectl("-n", "kube-system", "scale", "deployment", "coredns", "--replicas=0")
	c := n.awaitCondition(status.ConditionClusterDNS, "is false", func(c status.Condition) bool { return c.Reason == "NoReplicas" })
	assert.Assert(n.t, !c.OK)
	assert.Assert(n.t, cmp.Contains(c.Hint, "scale deployment coredns"))
	s := n.status()
	assert.Equal(n.t, s.State, status.NodeDegraded)
	assert.Assert(n.t, cmp.Contains(s.Reason, "ClusterDNS is not met: the Deployment kube-system/coredns has 0 replicas"))
	n.kubectl("-n", "kube-system", "scale", "deployment", "coredns", "--replicas=2")
	n.awaitCondition(status.ConditionClusterDNS, "is true again", isTrue)
	assert.Assert(n.t, cmp.Contains(n.run(podLimit, "events"), "node/ClusterDNS"))
}

func (n *testNode) deletedObjects() {
	n.t.Helper()
	objects := []string{"deployment/coredns", "service/kube-dns", "configmap/coredns", "serviceaccount/coredns"}
	uids := func() []string {
		args := append([]string{"-n", "kube-system", "get", "--ignore-not-found", "-o", "jsonpath={.items[*].metadata.uid}"}, objects...)
		return strings.Fields(n.kubectl(args...))
	}
	before := uids()
	n.kubectl(append([]string{"-n", "kube-system", "delete", "--wait=false"}, objects...)...)
	n.kubectl("delete", "clusterrole", "system:coredns", "rootlessnode:flannel")
	eventually(n.t, podLimit, "the objects are there again", func() error {
		after := uids()
		for _, uid := range before {
			for _, now := range after {
				if uid == now {
					return fmt.Errorf("%s still exists", uid)
				}
			}
		}
		if len(after) != len(objects) {
			return fmt.Errorf("%d of %d objects", len(after), len(objects))
		}
		return nil
	})
	eventually(n.t, podLimit, "the roles are there again", func() error {
		_, stderr, code := n.try(podLimit, "kubectl", "get", "clusterrole", "system:coredns", "rootlessnode:flannel")
		if code != 0 {
			return fmt.Errorf("%s", stderr)
		}
		return nil
	})
	n.awaitCondition(status.ConditionClusterDNS, "is true", isTrue)
	assert.Assert(n.t, cmp.Contains(n.run(podLimit, "events"), "restored Service kube-system/kube-dns, which was deleted"))
}

const customDNS = `
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns-custom, namespace: kube-system}
data:
  test.server: |
    e2e.test:53 {
        %s {
            192.0.2.77 x.e2e.test
        }
    }
`

func (n *testNode) invalidDNS() {
	n.t.Helper()
	n.apply(fmt.Sprintf(customDNS, "no-such-plugin"))
	c := n.awaitCondition(status.ConditionClusterDNS, "has a warning", func(c status.Condition) bool {
		return c.Warning && strings.Contains(c.Message, "Unknown directive 'no-such-plugin'")
	})
	assert.Assert(n.t, c.OK, "the pods with the former configuration answer")
	assert.Assert(n.t, cmp.Contains(c.Hint, "coredns-custom"))
	n.apply(fmt.Sprintf(customDNS, "hosts"))
	n.awaitCondition(status.ConditionClusterDNS, "is true", isTrue)
	n.customName()
}

// upWithoutDNS checks that up does not succeed while the DNS does not work, and repairs it.
func (n *testNode) upWithoutDNS() {
	n.t.Helper()
	_, stderr, code := n.try(upLimit, append([]string{"up", "--timeout", patiently(20 * time.Second).String()}, n.args...)...)
	assert.Equal(n.t, code, errdefs.ExitTimeout, stderr)
	for _, want := range []string{"error: wait for node", "ClusterDNS", "Unknown directive 'no-such-plugin'", "hint:", "coredns-custom"} {
		assert.Check(n.t, cmp.Contains(stderr, want))
	}
	assert.Assert(n.t, n.status().State != status.NodeReady)
	n.apply(fmt.Sprintf(customDNS, "hosts"))
	n.awaitCondition(status.ConditionClusterDNS, "is true", isTrue)
}

// customName checks that the user's part of the configuration of the DNS is used.
func (n *testNode) customName() {
	n.t.Helper()
	eventually(n.t, podLimit, "a name of the user's configuration resolves", func() error {
		out, stderr, code := n.try(podLimit, "kubectl", "exec", "web", "-c", "helper", "--", "nslookup", "x.e2e.test")
		if code != 0 || !strings.Contains(out, "192.0.2.77") {
			return fmt.Errorf("%s%s", out, stderr)
		}
		return nil
	})
}

func (n *testNode) deletedNode() {
	n.t.Helper()
	pod := func() string {
		return n.kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.uid} {.status.podIP} {.status.containerStatuses[*].containerID}")
	}
	ranges := func() string { return n.kubectl("get", "nodes", "-o", "jsonpath={.items[*].spec.podCIDRs}") }
	podBefore, rangesBefore := pod(), ranges()
	n.kubectl("label", "nodes", "--all", "e2e=kept")
	n.kubectl("delete", "nodes", "--all")
	eventually(n.t, podLimit, "the Node is Ready again", func() error {
		s := n.status()
		if c := s.Condition(status.ConditionNodeReady); !c.OK || !strings.Contains(n.kubectl("get", "nodes", "-l", "e2e=kept"), "Ready") {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	assert.Equal(n.t, ranges(), rangesBefore)
	assert.Equal(n.t, pod(), podBefore, "the pod was replaced")
	assert.Assert(n.t, cmp.Contains(n.run(podLimit, "events"), "which was deleted"))
}
