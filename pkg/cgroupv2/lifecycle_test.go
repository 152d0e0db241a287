package cgroupv2

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// claimHere detects and claims in the sandbox.
func claimHere(t *testing.T, sb *sandbox, name string) (Delegation, *Subtree) {
	t.Helper()
	d, err := Detect(sb.host, sandboxOptions())
	assert.NilError(t, err)
	s, err := Claim(t.Context(), d, name, sandboxOptions())
	assert.NilError(t, err)
	return d, s
}

func TestLifecycle(t *testing.T) {
	sb, here := inSandbox(t)
	if !here {
		return
	}
	origin := cgroupOf(t, os.Getpid())
	d, err := Detect(sb.host, sandboxOptions())
	assert.NilError(t, err)
	assert.Equal(t, d.Root, filepath.Dir(origin))
	assert.Equal(t, d.Source, SourcePrepared)

	bystander := cat(t)
	assert.NilError(t, movePid(d.Root, bystander.Process.Pid))
	_, s := claimHere(t, sb, "a")
	assert.Equal(t, s.Path(), filepath.Join(d.Root, "rootlessnode-a"))
	assert.Equal(t, cgroupOf(t, os.Getpid()), s.Path())
	assert.Equal(t, cgroupOf(t, bystander.Process.Pid), filepath.Join(d.Root, "evac"))

	child, helper := cat(t), cat(t)
	// By default a shell redirects the standard input of background processes from /dev/null; cat, and the shell, would end.
	grandchild := start(t, "", "sh", "-c", "exec 3<&0; cat <&3 & echo $!; wait")
	r, err := s.Arrange(os.Getpid(), child.Process.Pid)
	assert.NilError(t, err)
	assert.Equal(t, len(pidsIn(t, s.Path())), 0)
	assert.Equal(t, cgroupOf(t, child.Process.Pid), filepath.Join(s.Path(), "system/child"))
	for _, p := range []int{os.Getpid(), helper.Process.Pid, grandchild.Process.Pid} {
		assert.Equal(t, cgroupOf(t, p), filepath.Join(s.Path(), "system/parent"))
	}
	assert.DeepEqual(t, r.Unenforced, without(Wanted(), r.Enabled))
	assert.Equal(t, len(r.Refused), 0, "%v", r.Refused)
	assert.DeepEqual(t, r.Enabled, intersect(r.Enabled, d.Available))
	if slices.Contains(d.Available, "hugetlb") {
		assert.Assert(t, is.Contains(r.Enabled, "hugetlb"))
	}

	tree := Tree{Root: s.Path()}
	pod, err := tree.EnsureLeaf("kubepods/burstable/pod1")
	assert.NilError(t, err)
	has, err := readList(filepath.Join(s.Path(), "kubepods"), controllersFile)
	assert.NilError(t, err)
	assert.DeepEqual(t, sorted(has), sorted(r.Enabled))
	inPod := cat(t)
	assert.NilError(t, tree.Move("kubepods/burstable/pod1", inPod.Process.Pid))

	assert.NilError(t, s.Remove(t.Context()))
	assert.Assert(t, !exists(s.Path()) && !exists(pod))
	assert.Equal(t, cgroupOf(t, os.Getpid()), origin)
	assert.Equal(t, cgroupOf(t, bystander.Process.Pid), d.Root)
	assert.NilError(t, s.Remove(t.Context()), "second removal")
	assert.NilError(t, movePid(origin, bystander.Process.Pid))
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

// TestArrangeSortsDescendants checks that descendants of the child are moved to the child's cgroup.
func TestArrangeSortsDescendants(t *testing.T) {
	sb, here := inSandbox(t)
	if !here {
		return
	}
	_, s := claimHere(t, sb, "a")
	child := start(t, "", "sh", "-c", "exec 3<&0; cat <&3 & echo $!; wait")
	line := child.line(t)
	_, err := s.Arrange(os.Getpid(), child.Process.Pid)
	assert.NilError(t, err)
	b, err := os.ReadFile(filepath.Join(s.Path(), childLeaf, procsFile))
	assert.NilError(t, err)
	assert.Assert(t, is.Contains(strings.Fields(string(b)), line))
	assert.NilError(t, s.Remove(t.Context()))
}

// TestTwoNodesOfOneLogin is case C7: several nodes start at the same time from one login, all in D itself.
func TestTwoNodesOfOneLogin(t *testing.T) {
	sb, here := inSandbox(t)
	if !here {
		return
	}
	d, err := Detect(sb.host, sandboxOptions())
	assert.NilError(t, err)
	assert.NilError(t, moveSelf(d.Root))
	var nodes []*process
	for _, name := range []string{"a", "b", "c"} {
		nodes = append(nodes, start(t, envClaim+"="+name, "/proc/self/exe"))
	}
	for i, p := range nodes {
		dir, ok := strings.CutPrefix(p.line(t), "claimed ")
		assert.Assert(t, ok)
		assert.Equal(t, cgroupOf(t, p.Process.Pid), dir, "node %d", i)
	}
	assert.Equal(t, cgroupOf(t, os.Getpid()), filepath.Join(d.Root, evacLeaf))

	nodes[0].end()
	assert.Assert(t, nodes[0].ProcessState.Success())
	assert.Assert(t, exists(filepath.Join(d.Root, "rootlessnode-b")))
	on, err := readList(d.Root, subtreeFile)
	assert.NilError(t, err)
	assert.DeepEqual(t, sorted(on), sorted(intersect(append(Wanted(), Optional()...), d.Available)))

	for _, p := range nodes[1:] {
		p.end()
		assert.Assert(t, p.ProcessState.Success())
	}
	assert.Equal(t, cgroupOf(t, os.Getpid()), d.Root, "the last node reverts the evacuation")
}

// TestStartFromEvacuatedShell is case C7: for a shell that was moved to the evacuation leaf, D is the cgroup above.
func TestStartFromEvacuatedShell(t *testing.T) {
	sb, here := inSandbox(t)
	if !here {
		return
	}
	d, err := Detect(sb.host, sandboxOptions())
	assert.NilError(t, err)
	evac, err := ensureEvac(d.Root)
	assert.NilError(t, err)
	assert.NilError(t, moveSelf(evac))
	h, err := DetectHost(sandboxOptions())
	assert.NilError(t, err)
	again, err := Detect(h, sandboxOptions())
	assert.NilError(t, err)
	assert.Equal(t, again.Root, d.Root)
	_, s := claimHere(t, &sandbox{host: h}, "a")
	assert.Equal(t, s.Path(), filepath.Join(d.Root, "rootlessnode-a"))
	assert.NilError(t, s.Remove(t.Context()))
}

// TestCrash is case C6: after a kill -9 of the parent while a container runs, the guard, another process inside the tree,
// cleans up, or else the next start does.
func TestCrash(t *testing.T) {
	sb, here := inSandbox(t)
	if !here {
		return
	}
	d, err := Detect(sb.host, sandboxOptions())
	assert.NilError(t, err)
	crash := func() (path string, container *process) {
		p := start(t, envClaim+"=a", "/proc/self/exe")
		path = strings.TrimPrefix(p.line(t), "claimed ")
		tree := Tree{Root: path}
		_, err := tree.EnsureLeaf("kubepods/x")
		assert.NilError(t, err)
		container = cat(t)
		assert.NilError(t, tree.Move("kubepods/x", container.Process.Pid))
		assert.NilError(t, p.Process.Kill())
		_ = p.Wait()
		return path, container
	}

	path, container := crash()
	_, err = (Tree{Root: path}).EnsureLeaf("system/parent")
	assert.NilError(t, err)
	assert.NilError(t, (Tree{Root: path}).Move("system/parent", os.Getpid()))
	assert.NilError(t, RemoveTree(t.Context(), path))
	assert.Assert(t, !exists(path))
	assert.Assert(t, container.Wait() != nil, "the container was killed")
	assert.Equal(t, cgroupOf(t, os.Getpid()), d.Root)
	assert.NilError(t, RemoveTree(t.Context(), path), "second removal")

	path, container = crash()
	_, s := claimHere(t, sb, "a")
	assert.Equal(t, s.Path(), path)
	assert.Assert(t, !exists(filepath.Join(path, "kubepods")))
	assert.Assert(t, container.Wait() != nil)
	assert.NilError(t, s.Remove(t.Context()))
}

// TestClaimFails checks that a failed Claim of a foreign cgroup leaves nothing behind.
func TestClaimFails(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	f.foreign("/b", all)
	d := Delegation{Root: filepath.Join(f.mount, "b"), Source: SourceCurrent}
	_, err := Claim(t.Context(), d, "a", f.o)
	assert.ErrorContains(t, err, "is not delegated: not writable")
	left, err := subdirs(d.Root)
	assert.NilError(t, err)
	assert.Equal(t, len(left), 0)
}

// TestRemoveEndsWithContext checks that the wait for the kernel ends with its context and that the error lists the processes.
func TestRemoveEndsWithContext(t *testing.T) {
	sb, here := inSandbox(t)
	if !here {
		return
	}
	_, s := claimHere(t, sb, "a")
	p := cat(t)
	_, err := s.Arrange(os.Getpid(), p.Process.Pid)
	assert.NilError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = waitEmpty(ctx, filepath.Join(s.Path(), childLeaf))
	assert.Assert(t, errors.Is(err, context.Canceled))
	assert.ErrorContains(t, describeRemaining(s.Path(), unix.EBUSY), "(cat) in "+filepath.Join(s.Path(), childLeaf))
	assert.NilError(t, s.Remove(t.Context()))
}

func TestTreeInRealCgroups(t *testing.T) {
	sb, here := inSandbox(t)
	if !here {
		return
	}
	_, s := claimHere(t, sb, "a")
	tree := Tree{Root: s.Path()}
	p := cat(t)
	_, err := s.Arrange(os.Getpid(), p.Process.Pid)
	assert.NilError(t, err)
	_, err = tree.EnsureLeaf("system/kubelet")
	assert.NilError(t, err)
	_, err = tree.EnsureLeaf("system/kubelet")
	assert.NilError(t, err, "twice")
	assert.NilError(t, tree.Move("system/kubelet", p.Process.Pid))
	u, err := readUsage(filepath.Join(tree.root(), "system/kubelet"), proc.Host)
	assert.NilError(t, err)
	assert.Assert(t, u.CPUUsec != nil)
	on, err := tree.Controllers()
	assert.NilError(t, err)
	for _, c := range []string{"memory", "pids"} {
		assert.Equal(t, slices.Contains(u.FromProc, c), !slices.Contains(on, c), c)
	}
	// The memory may be 0 for such a small process, because the kernel counts it per CPU (mm/memory.c).
	assert.Assert(t, u.MemoryBytes != nil && *u.Pids > 0)
	assert.NilError(t, tree.Kill("system/kubelet"))
	assert.Assert(t, p.Wait() != nil)
	assert.NilError(t, tree.Remove("system/kubelet"))
	assert.NilError(t, tree.Remove("system/kubelet"), "gone")
	assert.NilError(t, tree.Kill("system/kubelet"), "gone")
	assert.NilError(t, s.Remove(t.Context()))
}

// TestSignal checks that a signal reaches exactly the processes in the cgroup and below.
func TestSignal(t *testing.T) {
	sb, here := inSandbox(t)
	if !here {
		return
	}
	_, s := claimHere(t, sb, "a")
	tree := Tree{Root: s.Path()}
	var inside []*process
	for _, name := range []string{"kubepods", "kubepods/besteffort/pod1"} {
		_, err := tree.EnsureLeaf(name)
		assert.NilError(t, err)
	}
	for range 2 {
		p := cat(t)
		assert.NilError(t, tree.Move("kubepods/besteffort/pod1", p.Process.Pid))
		inside = append(inside, p)
	}
	outside := cat(t)
	assert.NilError(t, tree.Signal("kubepods", unix.SIGTERM))
	assert.NilError(t, tree.WaitEmpty(t.Context(), "kubepods"))
	for _, p := range inside {
		assert.ErrorContains(t, p.Wait(), "signal: terminated")
	}
	assert.NilError(t, unix.Kill(outside.Process.Pid, 0))
	assert.NilError(t, tree.Signal("absent", unix.SIGTERM))
	assert.NilError(t, s.Remove(t.Context()))
}
