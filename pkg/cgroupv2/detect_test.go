package cgroupv2

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// fakeTree is a directory that looks like a cgroup2 tree. Foreign cgroups lack cgroup.procs, so that even root cannot write
// it.
type fakeTree struct {
	t     *testing.T
	mount string
	o     Options
}

func newFakeTree(t *testing.T) *fakeTree {
	t.Helper()
	f := &fakeTree{t: t, mount: t.TempDir()}
	f.o = Options{RuntimeDir: filepath.Join(f.mount, "run"), Booted: filepath.Join(f.mount, "booted")}
	return f
}

func (f *fakeTree) put(path, file, text string) {
	f.t.Helper()
	dir := filepath.Join(f.mount, path)
	assert.NilError(f.t, os.MkdirAll(dir, 0o755))
	assert.NilError(f.t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
}

func (f *fakeTree) foreign(path, controllers string) {
	f.put(path, controllersFile, controllers+"\n")
	f.put(path, subtreeFile, "")
	if path != "/" {
		f.put(path, typeFile, "domain\n")
	}
}

func (f *fakeTree) delegated(path, controllers string) {
	f.foreign(path, controllers)
	f.put(path, procsFile, "")
}

// listen creates a listening socket, so that Detect finds a user manager.
func (f *fakeTree) listen(socket string) {
	f.t.Helper()
	dir, err := os.MkdirTemp("", "rn") // short enough for sun_path
	assert.NilError(f.t, err)
	f.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f.o.RuntimeDir = dir
	assert.NilError(f.t, os.MkdirAll(filepath.Dir(filepath.Join(dir, socket)), 0o700))
	l, err := net.Listen("unix", filepath.Join(dir, socket))
	assert.NilError(f.t, err)
	f.t.Cleanup(func() { _ = l.Close() })
}

const all = "cpuset cpu io memory hugetlb pids rdma"

func TestDetect(t *testing.T) {
	t.Parallel()
	prepared := fmt.Sprintf("/rootlessnode/user-%d", os.Geteuid())
	const session = "/user.slice/user-1000.slice/user@1000.service"
	for _, tc := range []struct {
		name string
		self string
		v1   []string
		tree func(f *fakeTree)
		want Delegation // Root and LostAt relative to the mount point
	}{
		{name: "a delegated unit", self: "/a/b", tree: func(f *fakeTree) {
			f.foreign("/", all)
			f.foreign("/a", all)
			f.delegated("/a/b", all)
			f.put("/a/b", procsFile, "12\n7\n12\n")
		}, want: Delegation{Root: "/a/b", Source: SourceCurrent, Populated: []int{7, 12}}},
		{name: "only cpuset is missing", self: "/a/b", tree: func(f *fakeTree) {
			f.foreign("/", all)
			f.foreign("/a", "cpu io memory pids")
			f.delegated("/a/b", "cpu memory pids")
		}, want: Delegation{Root: "/a/b", Source: SourceCurrent, Missing: []string{"cpuset"}, LostAt: "/a"}},
		{name: "hybrid: v1 uses all controllers", self: "/b", v1: []string{"cpu", "cpuacct", "memory", "blkio"}, tree: func(f *fakeTree) {
			f.foreign("/", "hugetlb")
			f.delegated("/b", "hugetlb")
		}, want: Delegation{Root: "/b", Source: SourceCurrent, Missing: Wanted(), LostAt: "/", HeldByV1: []string{"cpu", "memory"},
			Absent: []string{"cpuset", "pids"}}},
		{name: "a kernel without cpuset, and cpu not delegated", self: "/a/b", tree: func(f *fakeTree) {
			f.foreign("/", "cpu io memory pids")
			f.foreign("/a", "memory pids")
			f.delegated("/a/b", "memory pids")
		}, want: Delegation{Root: "/a/b", Source: SourceCurrent, Missing: []string{"cpu", "cpuset"}, LostAt: "/a", Absent: []string{"cpuset"}}},
		{name: "evacuated shell", self: "/a/evac", tree: func(f *fakeTree) {
			f.foreign("/", all)
			f.delegated("/a", all)
			f.delegated("/a/evac", all)
		}, want: Delegation{Root: "/a", Source: SourceCurrent}},
		{name: "evac in a foreign cgroup", self: "/a/evac", tree: func(f *fakeTree) {
			f.foreign("/", all)
			f.foreign("/a", all)
			f.delegated("/a/evac", all)
		}, want: Delegation{Root: "/a/evac", Source: SourceCurrent}},
		{name: "inside another node", self: "/a/rootlessnode-x.scope/rootlessnode-x/system/parent", tree: func(f *fakeTree) {
			f.foreign("/", all)
			f.foreign("/a", all)
			f.delegated("/a/rootlessnode-x.scope", all)
			f.delegated("/a/rootlessnode-x.scope/rootlessnode-x/system/parent", all)
		}, want: Delegation{Root: "/a/rootlessnode-x.scope", Source: SourceCurrent}},
		{name: "prepared and entered", self: prepared + "/enter", tree: func(f *fakeTree) {
			f.foreign("/", all)
			f.foreign("/rootlessnode", all)
			f.delegated(prepared, all)
			f.delegated(prepared+"/enter", all)
		}, want: Delegation{Root: prepared, Source: SourcePrepared}},
		{name: "user manager", self: "/user.slice/user-1000.slice/session-1.scope", tree: func(f *fakeTree) {
			f.foreign("/", all)
			f.foreign("/user.slice/user-1000.slice/session-1.scope", all)
			f.listen("systemd/private")
		}, want: Delegation{Source: SourceScope}},
		{name: "desktop terminal without all controllers", self: session + "/app.slice/term.scope", tree: func(f *fakeTree) {
			f.foreign("/", all)
			f.foreign("/user.slice/user-1000.slice", all)
			f.delegated(session+"/app.slice/term.scope", "memory pids")
			f.listen("systemd/private")
		}, want: Delegation{Source: SourceScope}},
		{name: "the same without a manager", self: session + "/app.slice/term.scope", tree: func(f *fakeTree) {
			f.foreign("/", all)
			f.delegated(session+"/app.slice/term.scope", "memory pids")
		}, want: Delegation{Root: session + "/app.slice/term.scope", Source: SourceCurrent,
			Missing: []string{"cpu", "cpuset"}, LostAt: session + "/app.slice/term.scope"}},
		{name: "a service is always used", self: session + "/app.slice/node.service", tree: func(f *fakeTree) {
			f.foreign("/", all)
			f.delegated(session+"/app.slice/node.service", "memory pids")
			f.listen("systemd/private")
		}, want: Delegation{Root: session + "/app.slice/node.service", Source: SourceCurrent,
			Missing: []string{"cpu", "cpuset"}, LostAt: session + "/app.slice/node.service"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFakeTree(t)
			tc.tree(f)
			d, err := Detect(Host{Mount: f.mount, Self: tc.self, V1: tc.v1, Hybrid: tc.v1 != nil}, f.o)
			assert.NilError(t, err)
			d.Available = nil
			if tc.want.Root != "" {
				tc.want.Root = filepath.Join(f.mount, tc.want.Root)
			}
			if tc.want.LostAt != "" {
				tc.want.LostAt = filepath.Join(f.mount, tc.want.LostAt)
			}
			if tc.want.Populated == nil && d.Root != "" {
				tc.want.Populated = []int{}
			}
			assert.DeepEqual(t, d, tc.want)
		})
	}
}

func TestScopeReportsControllersOfTheManager(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	uid := os.Geteuid()
	f.foreign("/", all)
	f.foreign("/user.slice", all)
	f.foreign(fmt.Sprintf("/user.slice/user-%d.slice/user@%d.service", uid, uid), "memory pids")
	f.listen("systemd/private")
	d, err := Detect(Host{Mount: f.mount, Self: "/user.slice"}, f.o)
	assert.NilError(t, err)
	assert.DeepEqual(t, d.Missing, []string{"cpu", "cpuset"})
	assert.Assert(t, is.Contains(d.Hint().String(), "cpu is not delegated to "+f.mount+"/user.slice/user-"))
	assert.Assert(t, is.Contains(d.Hint().String(), "Delegate=cpu cpuset io memory pids"))
}

func TestNotDelegated(t *testing.T) {
	t.Parallel()
	prepared := fmt.Sprintf("/rootlessnode/user-%d", os.Geteuid())
	for _, tc := range []struct {
		name       string
		self       string
		ro         bool
		tree       func(f *fakeTree)
		text, hint string
	}{
		{name: "no systemd", self: "/b", tree: func(f *fakeTree) { f.foreign("/b", all) },
			text: "own cgroup MOUNT/b is owned by", hint: ": start the node"},
		{name: "names the file", self: "/b", tree: func(f *fakeTree) { f.foreign("/b", all) },
			text: "not writable: MOUNT/b/cgroup.procs", hint: "as root, prepare the host for the account"},
		{name: "prepared", self: "/b", tree: func(f *fakeTree) { f.foreign("/b", all); f.delegated(prepared, all) },
			text: "MOUNT" + prepared + " is prepared but not entered", hint: "# Enter the prepared cgroup:\nas root, for account "},
		{name: "systemd", self: "/b", tree: func(f *fakeTree) { f.foreign("/b", all); f.put("booted", "x", "") },
			text: "no systemd user manager answers in MOUNT/run", hint: "loginctl enable-linger"},
		{name: "the drop-in", self: "/b", tree: func(f *fakeTree) { f.foreign("/b", all); f.put("booted", "x", "") },
			text: "no cgroup is delegated", hint: `printf "[Service]\nDelegate=cpu cpuset io memory pids\n" | sudo tee /etc/systemd/system/user@.service.d/delegate.conf`},
		{name: "root of the tree", self: "/", tree: func(f *fakeTree) { f.foreign("/", all) },
			text: "own cgroup MOUNT is the root of the tree", hint: "prepare the host"},
		{name: "read-only", self: "/b", ro: true, tree: func(f *fakeTree) { f.foreign("/b", all) },
			text: "is in a tree mounted read-only", hint: "Mount the cgroup2 tree writable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFakeTree(t)
			tc.tree(f)
			_, err := Detect(Host{Mount: f.mount, Self: tc.self, ReadOnly: tc.ro}, f.o)
			var nd *NotDelegatedError
			assert.Assert(t, errors.As(err, &nd))
			assert.Equal(t, errdefs.ExitCode(err), errdefs.ExitPreflight)
			assert.ErrorContains(t, err, strings.ReplaceAll(tc.text, "MOUNT", f.mount))
			assert.Assert(t, is.Contains(errdefs.ReportOf(err).Hints[0], tc.hint))
		})
	}
}

func TestHint(t *testing.T) {
	t.Parallel()
	assert.Equal(t, Delegation{}.Hint().String(), "")
	absent := Delegation{Missing: []string{"cpuset"}, Absent: []string{"cpuset"}}.Hint().String()
	assert.Assert(t, is.Contains(absent, "cpuset: not available in the cgroup tree"))
	assert.Assert(t, !strings.Contains(absent, "sudo"), absent)
	hybrid := Delegation{Missing: []string{"cpu"}, HeldByV1: []string{"cpu"}}.Hint().String()
	assert.Equal(t, hybrid, "# cgroup v1 holds cpu; boot with the kernel argument systemd.unified_cgroup_hierarchy=1 to free them.")
	again := Delegation{Source: SourcePrepared, Missing: []string{"cpu"}, LostAt: "/x"}.Hint().String()
	assert.Assert(t, is.Contains(again, "cpu is not delegated to /x. Have root prepare"))
}

// TestDeadManager checks that a file that is not a listening socket does not count as a user manager.
func TestDeadManager(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	f.foreign("/b", all)
	f.put("run/systemd", "private", "")
	_, err := Detect(Host{Mount: f.mount, Self: "/b"}, f.o)
	assert.ErrorContains(t, err, "no cgroup is delegated")
}

func TestCheckDomain(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	f.delegated("/b", all)
	assert.NilError(t, checkDomain(filepath.Join(f.mount, "b")))
	f.put("/b", typeFile, "domain invalid\n")
	assert.ErrorContains(t, checkDomain(filepath.Join(f.mount, "b")), `is "domain invalid", not "domain"`)
}

func TestRemoveTreeRefusesOtherCgroups(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"/sys/fs/cgroup", "rootlessnode-a", "/x/rootlessnode", "/x/rootlessnode-a.scope", "/x/user.slice"} {
		assert.ErrorContains(t, RemoveTree(t.Context(), p), "is not the subtree of a node")
	}
	assert.NilError(t, RemoveTree(t.Context(), filepath.Join(t.TempDir(), "gone", "rootlessnode-a")))
}

func TestTreeNames(t *testing.T) {
	t.Parallel()
	tree := Tree{Root: t.TempDir()}
	for _, n := range []string{"", ".", "/", "/abs", "../x", "a/../.."} {
		_, err := tree.EnsureLeaf(n)
		assert.ErrorContains(t, err, "a relative path below")
		assert.ErrorContains(t, tree.Kill(n), "a relative path below")
		assert.ErrorContains(t, tree.Remove(n), "a relative path below")
		assert.ErrorContains(t, tree.Move(n, 1), "a relative path below")
	}
}

// TestDetectInContainers covers containers and CI jobs with a writable cgroup, as container engines mount it.
func TestDetectInContainers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, mountinfo, self string
		root                  string // cgroup of the process, relative to the mount point
	}{
		{"a private cgroup namespace", "/ MOUNT rw", "/", ""},
		{"a private cgroup namespace, and a job in a separate cgroup", "/ MOUNT rw", "/job", "/job"},
		{"the host's namespace, and the container's cgroup bound", "/system.slice/docker-1.scope MOUNT rw", "/system.slice/docker-1.scope", ""},
		{"the host's namespace, and all of its tree", "/ MOUNT rw", "/kubepods/podx/c", "/kubepods/podx/c"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFakeTree(t)
			f.delegated("/", all)
			f.put("/", typeFile, "domain\n") // the root of a tree has no such file
			f.delegated(tc.root+"/", all)
			f.put(tc.root+"/", procsFile, "1\n")
			o := f.o
			o.MountInfo, o.ProcSelfCgroup = filepath.Join(f.mount, "mountinfo"), filepath.Join(f.mount, "self")
			f.put("/", "mountinfo", "30 23 0:26 "+strings.ReplaceAll(tc.mountinfo, "MOUNT", f.mount)+",relatime - cgroup2 cgroup rw\n")
			f.put("/", "self", "0::"+tc.self+"\n")
			h, err := DetectHost(o)
			assert.NilError(t, err)
			d, err := Detect(h, o)
			assert.NilError(t, err)
			assert.Equal(t, d.Root, filepath.Join(f.mount, tc.root))
			assert.Equal(t, d.Source, SourceCurrent)
			assert.DeepEqual(t, d.Populated, []int{1})
			assert.Equal(t, len(d.Missing), 0)
		})
	}
}

func ptr[T any](v T) *T { return &v }
