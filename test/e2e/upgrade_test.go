package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// envUpgrade is the minor version from which TestUpgrade upgrades, such as 1.36. `make test-upgrade` sets it.
const envUpgrade = "ROOTLESSNODE_E2E_UPGRADE"

// upgradePort is the node port of TestUpgrade.
const upgradePort = 30890

// keeperManifest has a pod that writes a file to a volume when it first runs.
const keeperManifest = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: kept}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
- apiVersion: v1
  kind: Pod
  metadata: {name: keeper}
  spec:
    terminationGracePeriodSeconds: 1
    containers:
    - name: c
      image: rootlessnode.test/busybox:1
      command: [/bin/sh, -c, "trap exit TERM; test -e /kept/first || echo written once >/kept/first; while true; do sleep 1; done"]
      volumeMounts: [{name: kept, mountPath: /kept}]
    volumes: [{name: kept, persistentVolumeClaim: {claimName: kept}}]
`

// TestUpgrade starts a cluster with the older Kubernetes, upgrades it while its processes are killed, and returns to the snapshot. Each
// time the cluster has its objects, and its pods and Services work.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	require(t)
	older := os.Getenv(envUpgrade)
	if older == "" {
		t.Skipf("%s is not set; run make test-upgrade", envUpgrade)
	}
	n := newNode(t, "e2e-upgrade")
	current := n.args
	before := append(current[:len(current):len(current)], "--set", "kubernetesVersion=v"+older)

	n.args = before
	n.up()
	n.importImage()
	n.apply(fmt.Sprintf(webManifest, upgradePort))
	n.apply(keeperManifest)
	n.waitPod("keeper")
	n.isCluster(older)
	n.down()

	n.args = current
	n.interruptUpgrade()
	assert.Assert(t, cmp.Contains(n.up(), "Node"))
	newer := n.kubernetes()
	assert.Assert(t, !strings.HasPrefix(newer, "v"+older), newer)
	n.isCluster(strings.TrimPrefix(newer, "v"))
	n.kubectl("create", "configmap", "after-the-upgrade")
	snapshots := answer[[]node.Snapshot](n, "snapshot", "list")
	assert.Equal(t, len(snapshots), 1)
	former := snapshots[0]
	assert.Assert(t, strings.HasPrefix(former.Versions.Kubernetes, "v"+older), "%+v", former)

	_, stderr, code := n.try(podLimit, "snapshot", "restore", former.Name)
	assert.Equal(t, code, 1, "the node is running: %s", stderr)
	n.down()
	n.args = before
	_, stderr, code = n.try(upLimit, append([]string{"up"}, n.args...)...)
	assert.Equal(t, code, 2, stderr)
	assert.Assert(t, cmp.Contains(stderr, "snapshot restore "+former.Name))
	assert.Assert(t, cmp.Contains(stderr, "up --set kubernetesVersion=v"+older))

	n.run(podLimit, "snapshot", "restore", former.Name)
	n.up()
	n.isCluster(older)
	assert.Equal(t, n.kubectl("get", "configmap", "after-the-upgrade", "--ignore-not-found"), "")
	n.down()

	n.args = current
	out := n.up()
	assert.Assert(t, cmp.Contains(out, "The data was upgraded from Kubernetes "+former.Versions.Kubernetes))
	n.isCluster(strings.TrimPrefix(newer, "v"))
}

// kubernetes returns the version of the API server.
func (n *testNode) kubernetes() string {
	n.t.Helper()
	version := answer[struct{ ServerVersion struct{ GitVersion string } }](n, "kubectl", "version")
	return version.ServerVersion.GitVersion
}

// isCluster checks that the node is ready with a version of Kubernetes, and that the objects of webManifest are there and work.
func (n *testNode) isCluster(version string) {
	n.t.Helper()
	n.waitPod("web")
	n.answers(upgradePort)
	for want, command := range map[string][]string{
		"not-for-everyone\n": {"web", "-c", "helper", "--", "/bin/sh", "-c", "echo $TOKEN"},
		"written once\n":     {"keeper", "--", "cat", "/kept/first"},
	} {
		eventually(n.t, podLimit, "the pod has its data", func() error { // its container may start later
			out, stderr, _ := n.try(podLimit, append([]string{"kubectl", "exec"}, command...)...)
			if out != want {
				return fmt.Errorf("%s%s", out, stderr)
			}
			return nil
		})
	}
	n.kubectl("create", "secret", "generic", "probe", "--from-literal=a=b")
	n.kubectl("delete", "secret", "probe")
	s := n.status()
	assert.Equal(n.t, s.State, status.NodeReady, s.Reason)
	assert.Assert(n.t, strings.HasPrefix(s.Kubernetes, "v"+version), s.Kubernetes)
	assert.Assert(n.t, strings.HasPrefix(n.kubernetes(), "v"+version))
	kubelet := n.kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo.kubeletVersion}")
	assert.Assert(n.t, strings.HasPrefix(kubelet, "v"+version), kubelet)
}

// interruptUpgrade kills a node while it upgrades its data, after it has taken the snapshot.
func (n *testNode) interruptUpgrade() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), upLimit)
	defer cancel()
	up := n.command(ctx, append([]string{"up"}, n.args...)...)
	assert.NilError(n.t, up.Start())
	var pid int
	eventually(n.t, upLimit, "the node upgrades its data", func() error {
		if pid = n.status().ParentPID; pid == 0 || len(answer[[]node.Snapshot](n, "snapshot", "list")) == 0 {
			return fmt.Errorf("parent %d, no snapshot", pid)
		}
		return nil
	})
	kill(n.t, pid)
	assert.Assert(n.t, up.Wait() != nil)
	n.run(downLimit, "down", "--ended")
	noTrace(n.t, n.name)
}
