package e2e

import (
	"errors"
	"fmt"
	"strings"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// storageManifest has a claim of each access mode, a pod that writes to all of them as an ordinary user, another pod that shares one
// with it, claims and a pod that must be refused, and a volume as a malicious user would write it.
const storageManifest = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: once}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
- {apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: pod}, spec: {accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Ei}}}}
- {apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: many}, spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}}
- {apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: block}, spec: {volumeMode: Block, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {name: copy}
  spec: {accessModes: [ReadWriteOnce], dataSource: {kind: PersistentVolumeClaim, name: once}, selector: {matchLabels: {a: b}}, resources: {requests: {storage: 1Gi}}}
- apiVersion: v1
  kind: Pod
  metadata: {name: writer}
  spec:
    terminationGracePeriodSeconds: 1
    securityContext: {runAsUser: 1000, runAsGroup: 1000}
    containers:
    - name: c
      image: rootlessnode.test/busybox:1
      command: [/bin/sh, -c, "trap exit TERM; for d in once pod many; do date >>/$d/file; mkdir -p -m 000 /$d/closed; ln -sf / /$d/link; done; while true; do sleep 1; done"]
      readinessProbe: {exec: {command: [test, -s, /many/file]}, periodSeconds: 1}
      volumeMounts: [{name: once, mountPath: /once}, {name: pod, mountPath: /pod}, {name: many, mountPath: /many}]
    volumes:
    - {name: once, persistentVolumeClaim: {claimName: once}}
    - {name: pod, persistentVolumeClaim: {claimName: pod}}
    - {name: many, persistentVolumeClaim: {claimName: many}}
- apiVersion: v1
  kind: Pod
  metadata: {name: reader}
  spec:
    terminationGracePeriodSeconds: 1
    securityContext: {runAsUser: 2000}
    containers:
    - name: c
      image: rootlessnode.test/busybox:1
      command: [/bin/sh, -c, "trap exit TERM; while true; do sleep 1; done"]
      readinessProbe: {exec: {command: [test, -s, /many/file]}, periodSeconds: 1}
      volumeMounts: [{name: many, mountPath: /many}]
    volumes:
    - {name: many, persistentVolumeClaim: {claimName: many}}
- apiVersion: v1
  kind: Pod
  metadata: {name: refused}
  spec:
    terminationGracePeriodSeconds: 1
    containers:
    - {name: c, image: rootlessnode.test/busybox:1, command: [sleep, "1"], volumeDevices: [{name: block, devicePath: /dev/x}], volumeMounts: [{name: copy, mountPath: /copy}]}
    volumes:
    - {name: block, persistentVolumeClaim: {claimName: block}}
    - {name: copy, persistentVolumeClaim: {claimName: copy}}
- apiVersion: v1
  kind: Pod
  metadata: {name: users}
  spec: {hostUsers: false, containers: [{name: c, image: rootlessnode.test/busybox:1, command: [sleep, "1"]}]}
- apiVersion: v1
  kind: PersistentVolume
  metadata: {name: foreign, annotations: {pv.kubernetes.io/provisioned-by: rootlessnode.dev/local}}
  spec:
    capacity: {storage: 1Gi}
    accessModes: [ReadWriteOnce]
    persistentVolumeReclaimPolicy: Delete
    storageClassName: none
    claimRef: {namespace: default, name: deleted, uid: 0b1c6c0e-5b1f-4c55-9d58-3f2a1c1f0c11}
    local: {path: /var/lib/kubelet}
    nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: rootlessnode.dev/volumes, operator: Exists}]}]}}
`

// volumesInside is the directory of the volumes inside the node.
const volumesInside = "/var/lib/rootlessnode/volumes"

// storage uses the default StorageClass. volumesAgain completes the test after a restart of the node.
func (n *testNode) storage() {
	n.apply(storageManifest)
	n.waitPod("writer")
	n.waitPod("reader")
	for object, want := range map[string]string{
		"block": "does not support block volume", "copy": "spec.selector: not supported", "pod": "the claim requests 1Ei", "foreign": "was not created by this node",
		"users": "hostUsers: false does not work on a rootless node",
	} {
		eventually(n.t, podLimit, "an Event of "+object, func() error { return n.eventSays(object, want) })
	}
	n.inside("test", "-d", "/var/lib/kubelet/pods")

	n.kubectl("patch", "pvc", "once", "-p", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
	eventually(n.t, podLimit, "a larger claim", func() error {
		got := n.kubectl("get", "pvc", "once", "-o", "jsonpath={.status.capacity.storage}")
		return errorUnless(got == "2Gi", got)
	})
	free := n.kubectl("-n", "kube-system", "get", "csistoragecapacities", "rootlessnode", "-o", "jsonpath={.capacity}")
	assert.Assert(n.t, free != "" && free != "0", "the free space is not reported")
	n.defaultClass()
}

// eventSays returns an error unless an event of the object contains text.
func (n *testNode) eventSays(object, text string) error {
	got := n.kubectl("get", "events", "-A", "--field-selector", "involvedObject.name="+object, "-o", "jsonpath={.items[*].message}")
	return errorUnless(strings.Contains(got, text), got)
}

// defaultClass checks that a default class of the user replaces the node's.
func (n *testNode) defaultClass() {
	n.t.Helper()
	const class = "{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: own, annotations: {storageclass.kubernetes.io/is-default-class: \"true\"}}, provisioner: example.com/own}"
	isDefault := func(want string) {
		n.t.Helper()
		eventually(n.t, podLimit, "the default class", func() error {
			got := n.kubectl("get", "storageclass", "rootlessnode", "-o", `jsonpath={.metadata.annotations.storageclass\.kubernetes\.io/is-default-class}`)
			return errorUnless(got == want, fmt.Sprintf("%q", got))
		})
	}
	isDefault("true")
	n.apply(class)
	isDefault("")
	n.kubectl("delete", "storageclass", "own")
	isDefault("true")
}

// volumesAgain checks after a restart of the node that the data is there, and that deleted claims leave nothing.
func (n *testNode) volumesAgain() {
	n.waitPod("writer")
	lines := n.sh("writer", "wc -l < /once/file")
	assert.Assert(n.t, lines != "1", "the file does not have a line of each run")
	n.kubectl("delete", "pod", "writer", "reader", "refused", "users")
	const mount = volumesInside + "/default_once_*/mnt"
	n.inside("sh", "-ec", "cd "+volumesInside+"/default_once_*; mkdir mnt; mount -t tmpfs none mnt; touch mnt/file")
	volume := n.kubectl("get", "pvc", "once", "-o", "jsonpath={.spec.volumeName}")
	n.kubectl("delete", "pvc", "once", "pod", "many", "block", "copy")
	n.kubectl("delete", "pv", "foreign", "--wait=false")
	eventually(n.t, podLimit, "a volume with a mount is kept", func() error { return n.eventSays(volume, "a file system is mounted on") })
	n.inside("sh", "-ec", "test -e "+mount+"/file; umount "+mount)
	eventually(n.t, podLimit, "no volume is left", func() error {
		got := n.inside("ls", volumesInside)
		return errorUnless(!strings.Contains(got, "default_"), got)
	})
	assert.Assert(n.t, cmp.Contains(n.inside("ls", "/"), "etc"), "a link was followed")
}

func errorUnless(ok bool, got string) error {
	if ok {
		return nil
	}
	return errors.New(got)
}
