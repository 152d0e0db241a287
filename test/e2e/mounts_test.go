package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/mountverify"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// volumePod is a privileged pod that only waits, with the host's directory as a volume at /v.
const volumePod = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
  - name: c
    image: rootlessnode.test/busybox:1
    command: [/bin/sh, -c, "trap exit TERM; while true; do sleep 1; done"]
    securityContext: {privileged: true}
    volumeMounts: [%s]
  volumes:
  - {name: v, hostPath: {path: %q, type: Directory}}
  - {name: scratch, emptyDir: {}}
---
`

// fuse requires that the account can open /dev/fuse, so that its pods can open it too.
var fuse = testutil.Requirement{Name: "fuse", Check: func() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		err = f.Close()
	}
	return err
}}

func pod(name, mounts, dir string) string { return fmt.Sprintf(volumePod, name, mounts, dir) }

// sh runs a script in a pod.
func (n *testNode) sh(pod, script string) string {
	n.t.Helper()
	return n.kubectl("exec", pod, "--", "/bin/sh", "-ec", script)
}

// inside runs a program in the node.
func (n *testNode) inside(args ...string) string {
	n.t.Helper()
	return n.run(podLimit, append([]string{"exec", "--"}, args...)...)
}

// volumePods starts pods with each mount propagation: "both" is Bidirectional, "in" is HostToContainer, "none" does not propagate.
func (n *testNode) volumePods(dir string) {
	n.t.Helper()
	n.apply(pod("both", "{name: v, mountPath: /v, mountPropagation: Bidirectional}", dir) +
		pod("in", "{name: v, mountPath: /v, mountPropagation: HostToContainer}", dir) +
		pod("none", "{name: v, mountPath: /v}", dir))
	for _, p := range []string{"both", "in", "none"} {
		n.waitPod(p)
	}
}

// hostDir returns a directory that has the same path on the host and in the node.
func hostDir(t *testing.T, subs ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rootlessnode-mounts-")
	assert.NilError(t, err)
	t.Cleanup(func() { assert.NilError(t, os.RemoveAll(dir)) })
	assert.NilError(t, os.Chmod(dir, 0o777))
	for _, s := range subs {
		assert.NilError(t, os.MkdirAll(filepath.Join(dir, s), 0o777))
		assert.NilError(t, os.Chmod(filepath.Join(dir, s), 0o777))
	}
	return dir
}

func hostMounts(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	assert.NilError(t, err)
	return string(b)
}

// TestMounts checks mounts in pods, on a host on which the test cannot mount.
func TestMounts(t *testing.T) {
	t.Parallel()
	n := newNode(t, "e2e-mounts")
	n.up()
	n.importImage()
	dir := hostDir(t, "a", "later", "fuse", "ro/below")
	n.volumePods(dir)
	sub := func(name string, f func(n *testNode)) {
		t.Run(name, func(t *testing.T) { f(n.in(t)) })
	}
	sub("status has the conditions", func(n *testNode) {
		m := n.status().Mounts
		assert.Assert(n.t, m != nil)
		assert.Assert(n.t, m.Shared && !m.NodeToHost, "%+v", m)
		assert.Equal(n.t, len(m.Reasons) > 0, !m.HostToNode, "%+v", m)
	})
	sub("a Bidirectional volume's mount reaches pods and the node, not the host", func(n *testNode) {
		n.sh("both", "mount -t tmpfs none /v/a && echo mounted >/v/a/file")
		assert.Equal(n.t, n.sh("in", "cat /v/a/file"), "mounted\n")
		assert.Equal(n.t, n.sh("none", "ls /v/a"), "")
		assert.Assert(n.t, cmp.Contains(n.inside("cat", "/proc/self/mountinfo"), " "+dir+"/a "))
		assert.Assert(n.t, !strings.Contains(hostMounts(n.t), dir))
		n.sh("both", "umount /v/a")
		assert.Equal(n.t, n.sh("in", "ls /v/a"), "")
	})
	sub("a directory that gets a mount later", func(n *testNode) {
		n.inside("mount", "-t", "tmpfs", "none", dir+"/later")
		n.inside("touch", dir+"/later/file")
		assert.Equal(n.t, n.sh("in", "ls /v/later")+n.sh("both", "ls /v/later")+n.sh("none", "ls /v/later"), "file\nfile\n")
		n.inside("umount", dir+"/later")
	})
	sub("subPath", func(n *testNode) { n.subPath(dir) })
	sub("read-only, and recursively", func(n *testNode) { n.readOnly(dir) })
	sub("FUSE in a pod", func(n *testNode) {
		testutil.Require(n.t, fuse)
		n.fuse(dir)
	})
	sub("mounts verify", func(n *testNode) {
		one := n.status().Mounts.HostToNode
		v, code := n.verify()
		assert.Equal(n.t, v.Guarantees.HostToInside, one)
		assert.Assert(n.t, v.Derived)
		assert.Assert(n.t, v.Guarantees.Inside && !v.Guarantees.InsideToHost, "%+v", v)
		assert.Equal(n.t, code == 0, one, "%+v", v)
		assert.Equal(n.t, n.kubectl("get", "namespaces", "-o", "name", "-l", "pod-security.kubernetes.io/enforce=privileged"), "")
	})
	sub("CSI", func(n *testNode) { n.csi() })
	sub("hostPath below copied-up directories", func(n *testNode) { n.copiedUp() })
}

// verify runs mounts verify and returns its verdict and exit code.
func (n *testNode) verify(args ...string) (mountverify.Verdict, int) {
	n.t.Helper()
	out, stderr, code := n.try(podLimit, append([]string{"mounts", "verify", "-o", "json"}, args...)...)
	var v mountverify.Verdict
	assert.NilError(n.t, json.Unmarshal([]byte(out), &v), "exit %d: %s%s", code, out, stderr)
	assert.Equal(n.t, len(v.Leaks), 0, "%v", v.Leaks)
	return v, code
}

func (n *testNode) subPath(dir string) {
	n.t.Helper()
	assert.NilError(n.t, os.WriteFile(filepath.Join(dir, "a", "one"), []byte("1\n"), 0o600))
	n.apply(pod("sub", "{name: v, mountPath: /v/dir, subPath: a}, {name: v, mountPath: /v/file, subPath: a/one, readOnly: true}, "+
		"{name: scratch, mountPath: /s, subPath: made/here}", dir))
	n.waitPod("sub")
	assert.Equal(n.t, n.sh("sub", "cat /v/dir/one /v/file; touch /s/x; ls /s"), "1\n1\nx\n")
	_, _, code := n.try(podLimit, "kubectl", "exec", "sub", "--", "/bin/sh", "-c", "echo 2 >/v/file")
	assert.Assert(n.t, code != 0, "a read-only subPath was written")
}

// readOnly checks that a mount below a read-only volume can be written, unless the volume is recursively read-only.
func (n *testNode) readOnly(dir string) {
	n.t.Helper()
	n.inside("mount", "-t", "tmpfs", "none", dir+"/ro/below")
	defer n.inside("umount", dir+"/ro/below")
	n.apply(pod("ro", "{name: v, mountPath: /v, readOnly: true}", dir) +
		pod("rro", "{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled}", dir))
	n.waitPod("ro")
	n.waitPod("rro")
	defer n.kubectl("delete", "pod", "ro", "rro", "--wait")
	for _, p := range []string{"ro", "rro"} {
		_, _, code := n.try(podLimit, "kubectl", "exec", p, "--", "/bin/touch", "/v/x")
		assert.Assert(n.t, code != 0, "the read-only volume of %s was written", p)
	}
	n.sh("ro", "touch /v/ro/below/x")
	_, _, code := n.try(podLimit, "kubectl", "exec", "rro", "--", "/bin/touch", "/v/ro/below/x")
	assert.Assert(n.t, code != 0, "a mount below the recursively read-only volume was written")
}

// fuse checks that a pod sees a FUSE file system that another pod serves.
func (n *testNode) fuse(dir string) {
	n.t.Helper()
	n.sh("both", "/bin/netprobe fuse /v/fuse >/dev/null 2>&1 &")
	eventually(n.t, podLimit, "the FUSE mount is there", func() error {
		out, stderr, code := n.try(podLimit, "kubectl", "exec", "in", "--", "/bin/cat", "/v/fuse/hello")
		if code != 0 || out != "hello from FUSE\n" {
			return fmt.Errorf("exit %d: %s%s", code, out, stderr)
		}
		return nil
	})
	assert.Assert(n.t, cmp.Contains(n.inside("cat", "/proc/self/mountinfo"), dir+"/fuse "))
	n.sh("both", "umount /v/fuse")
}

// persistentPod has hostPath volumes below copied-up directories. Each volume is created when the pod starts.
const persistentPod = `
apiVersion: v1
kind: Pod
metadata: {name: persistent}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
  - name: c
    image: rootlessnode.test/busybox:1
    command: [/bin/sh, -c, "trap exit TERM; while true; do sleep 1; done"]
    volumeMounts:
    - {name: opt, mountPath: /d/opt}
    - {name: lib, mountPath: /d/lib}
    - {name: var, mountPath: /d/var, subPath: e2e-sub/path}
    - {name: varopt, mountPath: /d/varopt}
    - {name: etc, mountPath: /d/etc}
    - {name: log, mountPath: /log}
    - {name: run, mountPath: /run-volume}
    - {name: runtime, mountPath: /runtime}
  volumes:
  - {name: opt, hostPath: {path: /opt/e2e-provisioner/pvc, type: DirectoryOrCreate}}
  - {name: lib, hostPath: {path: /var/lib/e2e/storage, type: DirectoryOrCreate}}
  - {name: var, hostPath: {path: /var, type: Directory}}
  - {name: varopt, hostPath: {path: /var/opt/e2e, type: DirectoryOrCreate}}
  - {name: etc, hostPath: {path: /etc/e2e, type: DirectoryOrCreate}}
  - {name: log, hostPath: {path: /var/log/e2e.log, type: FileOrCreate}}
  - {name: run, hostPath: {path: /run/e2e, type: DirectoryOrCreate}}
  - {name: runtime, hostPath: {path: %q, type: Directory}}
`

// copiedUp checks that files of pods below copied-up directories survive a restart of the node, except below /run, for which the pod
// gets an Event, and that pods cannot access the account's runtime directory.
func (n *testNode) copiedUp() {
	n.t.Helper()
	runtime := os.Getenv("XDG_RUNTIME_DIR")
	bus := filepath.Join(runtime, "e2e-bus-"+n.name)
	assert.NilError(n.t, os.WriteFile(bus, nil, 0o600))
	defer func() { assert.NilError(n.t, os.Remove(bus)) }()
	n.apply(fmt.Sprintf(persistentPod, runtime))
	n.waitPod("persistent")
	n.sh("persistent", "for f in /d/opt/file /d/lib/file /d/var/file /d/varopt/file /d/etc/file /log /run-volume/file; do echo kept >$f; done")
	n.inside("sh", "-c", "echo kept >/opt/e2e-by-exec")
	assert.Equal(n.t, n.sh("persistent", "ls /runtime/rootlessnode; ls /runtime"), n.name+"\nrootlessnode\n")
	for _, dir := range []string{runtime, "/run/.ro*/user/*", "/proc/1/root" + runtime} {
		assert.Assert(n.t, !strings.Contains(n.inside("sh", "-c", "ls "+dir), "e2e-bus"), dir)
	}
	assert.Equal(n.t, n.inside("readlink", "/proc/1/cwd"), "/\n") // a working directory could lead below a mount that hides it
	for _, reason := range []string{"VolatileHostPath", "HiddenHostPath"} {
		eventually(n.t, podLimit, reason, func() error {
			if n.kubectl("get", "events", "--field-selector", "involvedObject.name=persistent,reason="+reason, "-o", "name") == "" {
				return fmt.Errorf("there is no Event %s", reason)
			}
			return nil
		})
	}
	n.down()
	n.up()
	// The pod has the status of the last run until the kubelet has started its container again.
	eventually(n.t, podLimit, "the files are there after a restart", func() error {
		out, stderr, code := n.try(podLimit, "kubectl", "exec", "persistent", "--", "/bin/sh", "-ec", "cat /d/*/file /log; ls /run-volume")
		if code != 0 || out != strings.Repeat("kept\n", 6) {
			return fmt.Errorf("exit code %d: %s%s", code, out, stderr)
		}
		return nil
	})
	assert.Equal(n.t, n.inside("cat", "/opt/e2e-by-exec"), "kept\n")
}
