package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/mountview"
)

const csiName = "csi.rootlessnode.test"

// csiClaim has the CSIDriver object, and a volume of the driver that exists before the pods.
const csiClaim = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: csi.rootlessnode.test}
spec: {attachRequired: false, podInfoOnMount: true, fsGroupPolicy: File, volumeLifecycleModes: [Ephemeral, Persistent]}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: csi-volume}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  claimRef: {namespace: default, name: csi-claim}
  csi: {driver: csi.rootlessnode.test, volumeHandle: one}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: csi-claim}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: csi-volume, resources: {requests: {storage: 1Mi}}}
`

// csiDriver is deployed as CSI drivers usually are: privileged, and with Bidirectional mounts of the kubelet's directories.
const csiDriver = `
apiVersion: v1
kind: Pod
metadata: {name: csi-driver}
spec:
  automountServiceAccountToken: false
  hostNetwork: true
  containers:
  - name: driver
    image: rootlessnode.test/busybox:1
    command: [/bin/csidriver, csi.rootlessnode.test, $(NODE)]
    env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
    securityContext: {privileged: true}
    volumeMounts:
    - {name: plugins, mountPath: /var/lib/kubelet/plugins, mountPropagation: Bidirectional}
    - {name: pods, mountPath: /var/lib/kubelet/pods, mountPropagation: Bidirectional}
    - {name: registry, mountPath: /var/lib/kubelet/plugins_registry}
  volumes:
  - {name: plugins, hostPath: {path: /var/lib/kubelet/plugins, type: Directory}}
  - {name: pods, hostPath: {path: /var/lib/kubelet/pods, type: Directory}}
  - {name: registry, hostPath: {path: /var/lib/kubelet/plugins_registry, type: Directory}}
`

// csiPod is a pod with volumes that only waits.
const csiPod = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  securityContext: {runAsUser: 1000, fsGroup: 2000}
  containers:
  - name: c
    image: rootlessnode.test/busybox:1
    command: [/bin/sh, -c, "trap exit TERM; while true; do sleep 1; done"]
    volumeMounts: [%s]
  volumes: [%s]
---
`

func csiInline(name string) string {
	return fmt.Sprintf(csiPod, name, "{name: memory, mountPath: /memory}, {name: layers, mountPath: /layers}",
		"{name: memory, csi: {driver: csi.rootlessnode.test}}, "+
			`{name: layers, csi: {driver: csi.rootlessnode.test, volumeAttributes: {overlay: "true"}}}`)
}

func csiClaimed(name, readOnly string) string {
	return fmt.Sprintf(csiPod, name, "{name: v, mountPath: /v}",
		"{name: v, persistentVolumeClaim: {claimName: csi-claim, readOnly: "+readOnly+"}}")
}

// csi tests volumes that a CSI driver mounts, through all operations of the kubelet.
func (n *testNode) csi() {
	n.t.Helper()
	before := map[string]bool{}
	for _, m := range n.mounts() {
		before[owner(m)] = true
	}
	n.apply(csiClaim)
	n.apply(csiDriver)
	n.waitPod("csi-driver")
	n.csiRegistered(1)
	n.apply(csiInline("inline") + csiInline("orphan") + csiClaimed("writer", "false") + csiClaimed("reader", "true"))
	for _, p := range []string{"inline", "orphan", "writer", "reader"} {
		n.waitPod(p)
	}
	n.csiUsed()
	n.csiListed()
	n.csiKubeletKilled()
	n.csiDriverGone()
	n.csiNodeAgain()

	n.kubectl("delete", "pod", "writer", "reader", "--wait")
	n.noMounts("the claim is unstaged", func(m mountview.Mount) bool { return strings.Contains(m.What, "staged") })
	n.kubectl("delete", "pod", "csi-driver", "--wait")
	n.noMounts("nothing is left of the driver", func(m mountview.Mount) bool { return !before[owner(m)] })
	eventually(n.t, podLimit, "the node has no such driver", func() error {
		if n.csiDrivers() != "" {
			return errors.New(n.csiDrivers())
		}
		return nil
	})
}

func (n *testNode) csiDrivers() string {
	n.t.Helper()
	return n.kubectl("get", "csinodes", "-o", "jsonpath={.items[*].spec.drivers[*].name}")
}

// csiRegistered waits until the kubelet has registered the driver the given number of times.
func (n *testNode) csiRegistered(times int) {
	n.t.Helper()
	eventually(n.t, podLimit, fmt.Sprintf("the driver is registered for time %d", times), func() error {
		log, stderr, code := n.try(podLimit, "kubectl", "logs", "csi-driver") // fails while a restarted kubelet does not know the pod yet
		if code != 0 || strings.Count(log, "registered: true") < times {
			return errors.New(log + stderr)
		}
		return nil
	})
	assert.Equal(n.t, n.csiDrivers(), csiName)
}

// csiUsed checks that pods read the driver's files in their volumes, and write unless the volume is read-only.
func (n *testNode) csiUsed() {
	n.t.Helper()
	for _, dir := range []string{"/memory", "/layers"} {
		assert.Equal(n.t, n.sh("inline", "cd "+dir+"; cat welcome; echo mine >mine; cat mine"), "pod inline\nmine\n", dir)
	}
	assert.Equal(n.t, n.sh("orphan", "ls /memory /layers"), "/layers:\nwelcome\n\n/memory:\nwelcome\n", "each pod has its own volumes")
	n.sh("writer", `cd /v; echo written >file; ls -ln file; ls -ln file | grep " 1000 *2000 "`) // the kubelet sets the group
	assert.Equal(n.t, n.sh("reader", "cat /v/welcome /v/file"), "volume one\nwritten\n")
	_, _, code := n.try(podLimit, "kubectl", "exec", "reader", "--", "/bin/sh", "-c", "echo x >/v/file")
	assert.Assert(n.t, code != 0, "a read-only volume was written")
}

// mounts returns the mounts in the node that are not the host's, by path.
func (n *testNode) mounts() map[string]mountview.Mount {
	n.t.Helper()
	var v mountview.View
	assert.NilError(n.t, json.Unmarshal([]byte(n.run(podLimit, "mounts", "-o", "json")), &v))
	own := map[string]mountview.Mount{}
	for _, m := range v.Mounts {
		if m.Kind != mountview.KindHost {
			own[m.Path] = m
		}
	}
	return own
}

// owner returns a name for the purpose of a mount that is the same after a restart of the node.
func owner(m mountview.Mount) string { return strings.TrimSpace(m.Pod + " " + m.What) }

func (n *testNode) noMounts(what string, are func(mountview.Mount) bool) {
	n.t.Helper()
	eventually(n.t, podLimit, what, func() error {
		for _, m := range n.mounts() {
			if are(m) {
				return fmt.Errorf("%+v", m)
			}
		}
		return nil
	})
}

func (n *testNode) uid(pod string) string {
	n.t.Helper()
	return n.kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
}

// volumesOf counts the mounts of a pod's volumes. The pod is identified by uid, because its name is known only while it has containers.
func (n *testNode) volumesOf(uid string) int {
	n.t.Helper()
	count := 0
	for path := range n.mounts() {
		if strings.Contains(path, "/pods/"+uid+"/volumes/") {
			count++
		}
	}
	return count
}

// csiListed checks that `mounts` lists the volumes with their owners, and that the host sees none of them.
func (n *testNode) csiListed() {
	n.t.Helper()
	found := map[string]string{}
	for _, m := range n.mounts() {
		assert.Assert(n.t, !m.HostSees, "%+v", m)
		if m.Kind == mountview.KindPod && strings.HasSuffix(m.What, "(CSI)") {
			found[owner(m)] = m.FSType
		}
	}
	want := map[string]string{
		"default/inline volume memory (CSI)": "tmpfs", "default/orphan volume memory (CSI)": "tmpfs",
		"default/inline volume layers (CSI)": "overlay", "default/orphan volume layers (CSI)": "overlay",
	}
	shared := "staged volume of " + csiName + " (CSI)"
	for _, of := range []string{shared, "default/writer volume csi-volume (CSI)", "default/reader volume csi-volume (CSI)"} {
		want[of] = found[shared] // the file system of the node's disk
	}
	assert.DeepEqual(n.t, found, want)
	uid := n.uid("inline")
	assert.Assert(n.t, cmp.Contains(n.inside("cat", "/proc/self/mountinfo"), "/pods/"+uid+"/volumes/kubernetes.io~csi/memory/mount "))
	assert.Assert(n.t, !strings.Contains(hostMounts(n.t), uid))
}

// csiKubeletKilled kills the kubelet and checks that it finds running pods again, and cleans up a pod that was deleted meanwhile.
func (n *testNode) csiKubeletKilled() {
	n.t.Helper()
	orphan, restarts, kubelet := n.uid("orphan"), n.restarts("kubelet"), n.pidOutside("kubelet")
	assert.NilError(n.t, syscall.Kill(kubelet, syscall.SIGSTOP)) // it must not see the deletion
	n.kubectl("delete", "pod", "orphan", "--force", "--grace-period=0")
	kill(n.t, kubelet)
	n.waitBack("kubelet", restarts)
	n.csiRegistered(2)
	assert.Equal(n.t, n.sh("inline", "cat /memory/mine /layers/mine; rm /memory/mine /layers/welcome; ls /memory /layers"),
		"mine\nmine\n/layers:\nmine\n\n/memory:\nwelcome\n")
	n.sh("writer", "echo again >/v/file")
	assert.Equal(n.t, n.sh("reader", "cat /v/file"), "again\n")
	assert.Equal(n.t, n.kubectl("get", "pods", "inline", "writer", "reader", "-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}"), "0 0 0")
	n.noMounts("the deleted pod's volumes are gone", func(m mountview.Mount) bool { return strings.Contains(m.Path, orphan) })
}

// csiDriverGone checks that a pod stays while its volume's driver is missing, because the volume cannot be unmounted.
func (n *testNode) csiDriverGone() {
	n.t.Helper()
	inline := n.uid("inline")
	n.kubectl("delete", "pod", "csi-driver", "--wait")
	n.kubectl("delete", "pod", "inline", "--wait=false")
	n.kubectl("wait", "pod/inline", "--for=jsonpath={.status.containerStatuses[0].state.terminated}", "--timeout", podLimit.String())
	assert.Equal(n.t, n.volumesOf(inline), 2)
	assert.Equal(n.t, n.sh("reader", "cat /v/file"), "again\n")
	n.apply(csiDriver)
	n.kubectl("wait", "pod/inline", "--for=delete", "--timeout", podLimit.String())
	assert.Equal(n.t, n.volumesOf(inline), 0)
}

// csiNodeAgain restarts the node, which removes its mounts, and checks that the driver mounts the volumes again, as after a reboot.
func (n *testNode) csiNodeAgain() {
	n.t.Helper()
	n.down()
	n.up()
	for _, p := range []string{"reader", "writer"} {
		eventually(n.t, podLimit, p+" runs again", func() error {
			out, stderr, code := n.try(podLimit, "kubectl", "exec", p, "--", "/bin/cat", "/v/file")
			if code != 0 || out != "again\n" {
				return fmt.Errorf("exit %d: %s%s", code, out, stderr)
			}
			return nil
		})
	}
	n.waitPod("csi-driver")
}
