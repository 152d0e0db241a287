package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/mountverify"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// envAccount names the account whose nodes are used by tests that act as root on the host.
const envAccount = "ROOTLESSNODE_E2E_ACCOUNT"

// fakeHost is a mount namespace that simulates a host. Mounts in it do not propagate to the machine.
type fakeHost struct {
	t   *testing.T
	pid int
}

// newHost creates a fakeHost whose mounts have the given propagation, shared or private.
func newHost(t *testing.T, propagation string) *fakeHost {
	t.Helper()
	return &fakeHost{t, hold(t, "mount --make-r"+propagation+" /", "--mount", "--propagation", "private")}
}

func (h *fakeHost) enter() []string {
	return []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", h.pid), "--"}
}

// do runs a program as root of the host.
func (h *fakeHost) do(args ...string) {
	h.t.Helper()
	argv := append(h.enter(), args...)
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	assert.NilError(h.t, err, "%v: %s", args, out)
}

func (h *fakeHost) mounts() string {
	h.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.pid))
	assert.NilError(h.t, err)
	return string(b)
}

// openFuse makes /dev/fuse accessible to all users, as most distributions do.
func (h *fakeHost) openFuse(dir string) {
	h.t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return
	}
	h.do("mount", "-t", "tmpfs", "none", dir)
	h.do("mknod", "-m", "666", dir+"/fuse", "c", "10", "229")
	h.do("mount", "--bind", dir+"/fuse", "/dev/fuse")
}

// forbidPrograms mounts the account's runtime directory and /tmp with noexec. wrap runs a program as the account.
func (h *fakeHost) forbidPrograms(wrap []string) {
	h.t.Helper()
	out, err := exec.Command(wrap[0], append(wrap[1:], "printenv", "XDG_RUNTIME_DIR")...).Output()
	assert.NilError(h.t, err)
	dirs := []string{strings.TrimSpace(string(out))}
	if !strings.HasPrefix(os.Getenv(envOut), "/tmp/") { // otherwise rootlessnode itself is there
		dirs = append(dirs, "/tmp")
	}
	for _, dir := range dirs {
		h.do("mount", "--rbind", dir, dir)
		h.do("mount", "-o", "remount,bind,noexec", dir)
	}
}

// TestHostMounts checks which mounts of the host reach the node, and which mounts of the node reach the host. The test acts as root of
// the host.
func TestHostMounts(t *testing.T) {
	t.Parallel()
	testutil.Require(t, built, testutil.Root, testutil.Requirement{Name: "e2e-account", Check: func() error {
		if os.Getenv(envAccount) == "" {
			return errors.New(envAccount + " is not set; run make test-e2e as root")
		}
		return nil
	}})
	for _, propagation := range []string{"shared", "private"} {
		t.Run(propagation, func(t *testing.T) {
			t.Parallel()
			onHost(t, newHost(t, propagation), propagation)
		})
	}
}

func onHost(t *testing.T, h *fakeHost, propagation string) {
	shared := propagation == "shared"
	wrap := append(h.enter(), binary("rootlessnode"), "host", "enter", "--user", os.Getenv(envAccount), "--command", "--")
	if !shared {
		h.forbidPrograms(wrap)
	}
	dir := hostDir(t, "host", "a", "churn", "dev", "fuse", "flags", "ro/below")
	h.openFuse(dir + "/dev")
	h.do("mount", "-t", "tmpfs", "-o", "nosuid,nodev,noexec,size=1m", "none", dir+"/flags")
	before := h.mounts()
	n := newNodeOf(t, "e2e-hostmounts-"+propagation, wrap)
	n.up()
	n.importImage()
	n.volumePods(dir)
	sub := func(name string, f func(n *testNode)) {
		t.Run(name, func(t *testing.T) { f(n.in(t)) })
	}
	sub("mounts of the host after the start", func(n *testNode) {
		h.do("mount", "-t", "tmpfs", "none", dir+"/host")
		h.do("touch", dir+"/host/file")
		for pod, sees := range map[string]bool{"in": shared, "both": shared, "none": false} {
			assert.Equal(n.t, n.sh(pod, "ls /v/host") == "file\n", sees, "pod %s", pod)
		}
		assert.Equal(n.t, strings.Contains(n.inside("cat", "/proc/self/mountinfo"), " "+dir+"/host "), shared)
		h.do("umount", dir+"/host")
	})
	sub("directories of the host in a copied-up directory", func(n *testNode) { n.newEntry(h, shared) })
	sub("mounts in a Bidirectional volume", func(n *testNode) {
		n.sh("both", "mount -t tmpfs none /v/a && touch /v/a/file")
		assert.Equal(n.t, n.sh("in", "ls /v/a"), "file\n")
		assert.Assert(n.t, cmp.Contains(n.inside("cat", "/proc/self/mountinfo"), " "+dir+"/a "))
		assert.Assert(n.t, !strings.Contains(h.mounts(), dir+"/a"))
		n.sh("both", "umount /v/a")
	})
	sub("FUSE in a pod", func(n *testNode) {
		testutil.Require(n.t, fuse)
		n.fuse(dir)
	})
	sub("flags that the host locked", func(n *testNode) { n.lockedFlags(dir) })
	sub("mounts verify", func(n *testNode) { n.verifyHost(h, shared) })
	if shared {
		sub("twenty pods leave the host's mounts as they were", func(n *testNode) {
			n.twentyPods()
			assert.Equal(n.t, h.mounts(), before)
		})
		sub("mounting inside does not wake readers of mountinfo on the host", func(n *testNode) { n.churn(h, dir) })
	}
	sub("after down", func(n *testNode) {
		n.down()
		assert.Equal(n.t, h.mounts(), before)
	})
	sub("deleting data does not cross mounts", func(n *testNode) { n.mountsInData(h, dir) })
}

// mountsInData checks that deleting data keeps file systems that the host has mounted in the data dir, and deletes the rest.
func (n *testNode) mountsInData(h *fakeHost, dir string) {
	n.t.Helper()
	d := layout.NewData(n.status().DataDir)
	theirs, below := filepath.Join(d.Dir, "theirs"), filepath.Join(d.Dir, "kubelet", "mount")
	h.do("mkdir", theirs, below)
	h.do("touch", dir+"/a/keep")
	for _, at := range []string{theirs, below} {
		h.do("mount", "--bind", dir+"/a", at)
	}
	_, stderr, code := n.try(downLimit, "down", "--delete-data")
	assert.Equal(n.t, code, errdefs.ExitOther, "%s", stderr)
	assert.Assert(n.t, cmp.Contains(stderr, "error: "+below+": it is a mount\n"))
	assert.Assert(n.t, cmp.Contains(stderr, "umount "+below+"\n"))
	h.do("umount", below)
	out := n.run(downLimit, "down", "--delete-data")
	assert.Assert(n.t, cmp.Contains(out, "deleted the node's data in "+d.Dir+"\n"))
	assert.Assert(n.t, cmp.Contains(out, "  "+theirs+" (a mount)\n"))
	h.do("test", "-e", theirs+"/keep")
	h.do("umount", theirs)
	h.do("rmdir", theirs, d.Dir)
}

// newEntry checks that a directory that the host creates in /var after the start appears inside, and a mount on it if mounts are shared.
func (n *testNode) newEntry(h *fakeHost, shared bool) {
	n.t.Helper()
	dir, err := os.MkdirTemp("/var", "rootlessnode-entry-")
	assert.NilError(n.t, err)
	defer func() { assert.NilError(n.t, os.RemoveAll(dir)) }()
	assert.NilError(n.t, os.Chmod(dir, 0o755))
	there := func() error {
		_, stderr, code := n.try(podLimit, "exec", "--", "ls", dir)
		if code != 0 {
			return errors.New(stderr)
		}
		return nil
	}
	eventually(n.t, podLimit, "the directory is there inside", there)
	h.do("mount", "-t", "tmpfs", "none", dir)
	h.do("touch", dir+"/file")
	assert.Equal(n.t, n.inside("ls", dir) == "file\n", shared)
	h.do("umount", dir)
	assert.NilError(n.t, os.Remove(dir))
	eventually(n.t, podLimit, "the directory is gone inside", func() error {
		if there() == nil {
			return errors.New("it still exists")
		}
		return nil
	})
}

// lockedFlags checks volumes on a mount with nosuid, nodev and noexec, which cannot be cleared in a user namespace.
func (n *testNode) lockedFlags(dir string) {
	n.t.Helper()
	n.inside("mkdir", dir+"/flags/sub")
	n.apply(pod("flags", "{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled}, {name: v, mountPath: /ro, subPath: flags/sub, readOnly: true}, "+
		"{name: v, mountPath: /rw, subPath: flags/sub}", dir))
	n.waitPod("flags")
	n.sh("flags", "touch /rw/x; grep ' /ro tmpfs ro,nosuid,nodev,noexec' /proc/mounts || { cat /proc/mounts; false; }")
	for _, file := range []string{"/ro/y", "/v/flags/y"} {
		_, _, code := n.try(podLimit, "kubectl", "exec", "flags", "--", "/bin/touch", file)
		assert.Assert(n.t, code != 0, "%s was written", file)
	}
}

// verifyHost runs mounts verify as the account, which cannot mount on the host, and as root of the host, which can.
func (n *testNode) verifyHost(h *fakeHost, shared bool) {
	n.t.Helper()
	want, wantCode := "1 yes, 2 yes, 3 no", 0
	if !shared {
		want, wantCode = "1 no, 2 yes, 3 no", 4
	}
	v, code := n.verify()
	assert.Assert(n.t, v.Derived)
	assert.Equal(n.t, v.Text(), want)
	assert.Equal(n.t, code, wantCode)

	root := n.in(n.t)
	root.wrap = h.enter()
	kubeconfig := strings.TrimSpace(n.run(podLimit, "kubeconfig", "--path"))
	args := []string{"--kubeconfig", kubeconfig, "--image", testImage}
	v, code = root.verify(args...)
	assert.Assert(n.t, !v.Derived)
	assert.Equal(n.t, v.Text(), want)
	assert.Equal(n.t, code, wantCode)
	in := mountverify.Unseen
	if shared {
		in = mountverify.Seen
	}
	for _, by := range []string{mountverify.Node, mountverify.Bidirectional, mountverify.HostToContainer} {
		assert.Equal(n.t, v.Rows[0].SeeIt[by], in, "the host's mount, by %s", by)
	}
	_, _, code = root.try(podLimit, append([]string{"mounts", "verify", "--host-visible"}, args...)...)
	assert.Equal(n.t, code, 4)
	if !shared {
		_, stderr, _ := n.try(podLimit, "mounts", "verify")
		assert.Assert(n.t, cmp.Contains(stderr, "mount --make-rshared /"))
		out, _, _ := n.try(podLimit, "check", "-o", "json")
		var findings []struct{ Hint string }
		assert.NilError(n.t, json.Unmarshal([]byte(out), &findings), out)
		assert.Assert(n.t, slices.ContainsFunc(findings, func(f struct{ Hint string }) bool {
			return strings.Contains(f.Hint, "mount --make-rshared /")
		}), out)
	}
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: many}
spec:
  replicas: 20
  selector: {matchLabels: {app: many}}
  template:
    metadata: {labels: {app: many}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: c, image: "rootlessnode.test/busybox:1", command: [/bin/sh, -c, "trap exit TERM; while true; do sleep 5; done"]}
`

func (n *testNode) twentyPods() {
	n.t.Helper()
	n.apply(deployment)
	n.kubectl("rollout", "status", "deployment/many", "--timeout", "110s")
}

// churn mounts and unmounts inside while it watches the host's mountinfo as systemd does.
func (n *testNode) churn(h *fakeHost, dir string) {
	n.t.Helper()
	// Not os.Open: there is one event for each open file, and Go's poller would consume it.
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mountinfo", h.pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	assert.NilError(n.t, err)
	defer func() { assert.NilError(n.t, unix.Close(fd)) }()
	end, stop, err := os.Pipe()
	assert.NilError(n.t, err)
	defer end.Close()
	var woken atomic.Int64
	done := make(chan error, 1)
	fds := func() []unix.PollFd {
		return []unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}, {Fd: int32(end.Fd()), Events: unix.POLLIN}}
	}
	go func() {
		for {
			p := fds()
			if _, err := unix.Poll(p, -1); err != nil && !errors.Is(err, unix.EINTR) {
				done <- err
				return
			}
			if p[0].Revents&(unix.POLLPRI|unix.POLLERR) != 0 {
				woken.Add(1)
			}
			if p[1].Revents != 0 {
				done <- nil
				return
			}
		}
	}()
	n.inside("sh", "-ec", `i=0; while [ $i -lt 1000 ]; do mount -t tmpfs none "$1"; umount "$1"; i=$((i+1)); done`, "sh", dir+"/churn")
	assert.Equal(n.t, woken.Load(), int64(0))
	h.do("mount", "-t", "tmpfs", "none", filepath.Join(dir, "churn")) // proves that the watcher works
	eventually(n.t, podLimit, "the watcher sees a mount of the host", func() error {
		if woken.Load() == 0 {
			return errors.New("no event")
		}
		return nil
	})
	h.do("umount", filepath.Join(dir, "churn"))
	assert.NilError(n.t, stop.Close())
	assert.NilError(n.t, <-done)
}
