package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// pidOutside returns the host's pid of the process of the node that runs a program.
func (n *testNode) pidOutside(program string) int {
	n.t.Helper()
	for _, p := range processes(n.name) {
		pid, cmdline, _ := strings.Cut(p, " ")
		argv0, _, _ := strings.Cut(cmdline, " ")
		if argv0 == program || strings.HasSuffix(argv0, "/"+program) {
			v, err := strconv.Atoi(pid)
			assert.NilError(n.t, err)
			return v
		}
	}
	n.t.Fatalf("no process of node %s runs %s: %v", n.name, program, processes(n.name))
	return 0
}

func kill(t *testing.T, pid int) {
	t.Helper()
	assert.NilError(t, syscall.Kill(pid, syscall.SIGKILL))
}

func (n *testNode) restarts(component string) int {
	n.t.Helper()
	s := n.status()
	return s.Component(component).Restarts
}

// waitBack waits until a component that was killed is ready again. restarts is its number of restarts before. It should take less than
// 5 s. The test does not check that, because the machine may be loaded; a benchmark measures it.
func (n *testNode) waitBack(component string, restarts int) {
	n.t.Helper()
	eventually(n.t, podLimit, component+" is back", func() error {
		s := n.status()
		if c := s.Component(component); c == nil || c.State != status.Ready || c.Restarts == restarts {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// TestComponentKilled checks that every component is restarted after it was killed, without an effect on pods and their ports.
func TestComponentKilled(t *testing.T) {
	t.Parallel()
	n := newNode(t, "e2e-killed", append(smallQuota, "--set", "podSecurity=baseline")...)
	n.wrap = hostileLogin()
	n.up()
	n.importImage()
	t.Run("pods are confined", func(t *testing.T) { n.in(t).confined() })
	t.Run("the login has no effect", func(t *testing.T) { n.in(t).isolatedFromLogin() })
	n.apply(fmt.Sprintf(webManifest, 30181))
	n.waitPod("web")
	n.answers(30181)
	started := n.kubectl("get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[*].restartCount} {.status.startTime}")
	for component, program := range map[string]string{
		"kubelet": "kubelet", "containerd": "containerd", "etcd": "etcd", "kube-apiserver": "kube-apiserver", "kube-proxy": "kube-proxy",
		"kube-scheduler": "kube-scheduler", "kube-controller-manager": "kube-controller-manager", "flannel": "flanneld",
		"metrics-server": "metrics-server",
	} {
		pid, restarts := n.pidOutside(program), n.restarts(component)
		kill(t, pid)
		n.waitBack(component, restarts)
		assert.Assert(t, n.pidOutside(program) != pid)
		n.answers(30181)
	}
	t.Run("uplink", func(t *testing.T) { n.in(t).uplinkKilled(hostAddress(t)) })
	eventually(t, podLimit, "the node is ready again", func() error {
		if s := n.status(); s.State != status.NodeReady {
			return fmt.Errorf("%s: %s", s.State, s.Reason)
		}
		return nil
	})
	assert.Equal(t, n.kubectl("get", "pod", "web", "-o",
		"jsonpath={.status.containerStatuses[*].restartCount} {.status.startTime}"), started)
	// A restarted component must also keep running: a kubelet may start, report healthy, and then fail because of the running pods.
	n.kubectl("run", "later", "--image="+testImage, "--restart=Never", "--command", "--", "/bin/sh", "-c", "trap exit TERM; sleep 3600 & wait")
	n.waitPod("later")
	for _, component := range []string{"kubelet", "containerd"} {
		s := n.status()
		c := s.Component(component)
		assert.Assert(t, c.State == status.Ready && c.Restarts == 1, "%+v", c)
	}
	t.Run("certificates are renewed", func(t *testing.T) { n.in(t).renewsCertificates() })
	t.Run("a full datastore", func(t *testing.T) { n.in(t).datastoreIsFreed() })
}

// TestRolesKilled checks that nothing of the node is left after one of rootlessnode's processes was killed, and that the next up works.
func TestRolesKilled(t *testing.T) {
	t.Parallel()
	n := newNode(t, "e2e-roles")
	for _, victim := range []struct {
		name string
		pid  func(s status.Status) int
	}{
		{"parent", func(s status.Status) int { return s.ParentPID }},
		{"child", func(s status.Status) int { return s.ChildPID }},
		{"node role", func(s status.Status) int { return nodeRole(t, s.ChildPID) }},
	} {
		n.upFromPipe()
		n.run(podLimit, "down", "--ended") // does nothing while the node runs
		kill(t, victim.pid(n.status()))
		n.run(downLimit, "down", "--ended") // after the end of the parent, waits for the remaining processes
		noTrace(t, n.name)
		s := n.status()
		assert.Equal(t, s.State, status.NodeFailed, "after the %s was killed", victim.name)
		assert.Assert(t, s.Reason != "")
	}
	n.up()
	n.down()
	noTrace(t, n.name)
}

// upFromPipe runs up with a pipe as its output, as scripts do, and checks that the pipe is closed when up ends and not when the node ends.
func (n *testNode) upFromPipe() {
	n.t.Helper()
	read, write, err := os.Pipe()
	assert.NilError(n.t, err)
	defer read.Close()
	ctx, cancel := context.WithTimeout(n.t.Context(), upLimit)
	defer cancel()
	cmd := n.command(ctx, append([]string{"up"}, n.args...)...)
	cmd.ExtraFiles = []*os.File{write}
	out, err := cmd.CombinedOutput()
	assert.NilError(n.t, err, string(out))
	assert.NilError(n.t, write.Close())
	assert.NilError(n.t, read.SetReadDeadline(time.Now().Add(podLimit)))
	_, err = io.ReadAll(read)
	assert.NilError(n.t, err, "a process of the node keeps the pipe open")
}

// nodeRole returns the pid of the node role, the only child of the node's process 1 that runs rootlessnode.
func nodeRole(t *testing.T, childPID int) int {
	t.Helper()
	out, err := exec.Command("ps", "--ppid", strconv.Itoa(childPID), "-o", "pid=,args=").Output()
	assert.NilError(t, err)
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) > 2 && f[1] == "/proc/self/exe" && f[2] == "node" {
			pid, err := strconv.Atoi(f[0])
			assert.NilError(t, err)
			return pid
		}
	}
	t.Fatalf("no node role below %d:\n%s", childPID, out)
	return 0
}

func uplink(t *testing.T, n *testNode) int {
	t.Helper()
	return n.pidOutside(n.status().Network.Driver) // the program has the same name
}

// uplinkKilled checks that the pod web reaches addresses of the host again after the network process was killed.
func (n *testNode) uplinkKilled(ips ...string) {
	n.t.Helper()
	reach := func() (err error) {
		for _, ip := range ips {
			n.openHost(ip)
			err = errors.Join(err, n.fetch(n.serve(ip, "hello from the host"), "hello from the host"))
		}
		return err
	}
	pid := uplink(n.t, n)
	kill(n.t, pid)
	eventually(n.t, podLimit, "pods reach the host again", reach)
	assert.Assert(n.t, uplink(n.t, n) != pid)
	eventually(n.t, podLimit, "the condition is met again", func() error {
		s := n.status()
		if c := s.Condition(status.ConditionUplink); c == nil || !c.OK {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
}

// rounds is how many times in a row a test starts and stops a node: ROOTLESSNODE_E2E_ROUNDS, or least.
func rounds(least int) int {
	if v, err := strconv.Atoi(os.Getenv("ROOTLESSNODE_E2E_ROUNDS")); err == nil {
		return v
	}
	return least
}

// TestAgainAndAgain runs up and down many times in a row, and checks each time that nothing is left.
func TestAgainAndAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t, "e2e-again")
	for round := range rounds(3) {
		n.upWithName(round)
		n.down()
		noTrace(t, n.name)
	}
	t.Run("settings that the data does not permit", func(t *testing.T) { n.in(t).changedSettings() })
	t.Run("a data dir that is not the node's", func(t *testing.T) { n.in(t).foreignDataDirs() })
	t.Run("data of other ids", func(t *testing.T) { n.in(t).otherIDs() })
	t.Run("another data dir", func(t *testing.T) { n.in(t).otherDataDir() })
}

// TestEmbed checks that the example program reaches Ready twice in a row, and leaves nothing when it is killed with SIGKILL.
func TestEmbed(t *testing.T) {
	t.Parallel()
	require(t)
	for range 2 {
		out, err := exec.Command(binary("embed"), "stop").CombinedOutput()
		assert.NilError(t, err, "%s", out)
		assert.Assert(t, strings.Contains(string(out), "ready:"), "%s", out)
		noTrace(t, "embed")
	}
	cmd := exec.Command(binary("embed"))
	stdout, err := cmd.StdoutPipe()
	assert.NilError(t, err)
	assert.NilError(t, cmd.Start())
	timeout := time.AfterFunc(upLimit, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	line := make([]byte, len("ready:"))
	_, err = stdout.Read(line)
	assert.NilError(t, err)
	assert.Equal(t, string(line), "ready:")
	kill(t, cmd.Process.Pid)
	_ = cmd.Wait()
	noTrace(t, "embed")
}

// confined checks that ordinary pods and CoreDNS run under the Pod Security Standard "baseline" with a seccomp filter, and that pods that
// could act as the account are refused.
func (n *testNode) confined() {
	n.t.Helper()
	n.kubectl("run", "plain", "--image="+testImage, "--restart=Never", "--command", "--", "/bin/sh", "-c", "sleep 3600")
	n.waitPod("plain")
	assert.Equal(n.t, n.sh("plain", "grep Seccomp: /proc/1/status"), "Seccomp:\t2\n")
	n.kubectl("-n", "kube-system", "wait", "--for=condition=Ready", "pod", "--all", "--timeout="+podLimit.String())
	out, stderr, code := n.try(podLimit, "kubectl", "run", "refused", "--image="+testImage, "--privileged")
	assert.Assert(n.t, code != 0 && strings.Contains(stderr, `violates PodSecurity "baseline:latest"`), "%s%s", out, stderr)
	n.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: trusted, labels: {pod-security.kubernetes.io/enforce: privileged}}\n")
	n.kubectl("-n", "trusted", "run", "privileged", "--image="+testImage, "--privileged", "--restart=Never", "--command", "--", "/bin/true")
	n.kubectl("-n", "trusted", "delete", "pod", "privileged", "--now")
	n.kubectl("delete", "pod", "plain", "--now")
}
