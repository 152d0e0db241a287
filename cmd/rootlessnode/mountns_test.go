package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/internal/mountview"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
)

// fakeMounts returns the values of its fields and records the calls.
type fakeMounts struct {
	created mountns.Created
	status  mountns.Status
	list    []mountns.Namespace
	find    error
	calls   []string
	execErr error
}

func (f *fakeMounts) note(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fakeMounts) Create(s mountns.Spec) (*mountns.Created, error) {
	f.note("create %s %s", s.Name, s.Propagation)
	return &f.created, nil
}
func (f *fakeMounts) List() ([]mountns.Namespace, error) { return f.list, nil }
func (f *fakeMounts) Delete(name string, force bool) error {
	f.note("delete %s %v", name, force)
	return nil
}

func (f *fakeMounts) Status(name string) (*mountns.Status, error) {
	f.note("status %s", name)
	return &f.status, nil
}
func (f *fakeMounts) Find(string) error      { return f.find }
func (f *fakeMounts) Pin(name string) string { return "/run/rootlessnode/mountns/" + name }
func (f *fakeMounts) Exec(o mountns.ExecOptions) error {
	f.note("exec name=%s pin=%s argv0=%s %q", o.Name, o.Pin, o.Argv0, o.Argv)
	return f.execErr
}

func namespaceOf(name string) mountns.Namespace {
	return mountns.Namespace{Name: name, Pin: "/run/rootlessnode/mountns/" + name, ID: "mnt:[4026532179]", Propagation: mountns.Slave, Processes: 3}
}

// newMountCLI returns a command line of root with fake mount namespaces.
func newMountCLI(t *testing.T) (*cli, *fakeMounts) {
	t.Helper()
	c, f := newCLI(t), &fakeMounts{}
	c.uid, c.mounts, c.exe, c.unitDir = 0, f, "/usr/bin/rootlessnode", t.TempDir()
	c.rootOnly = func(string) error { return nil }
	c.systemctl = func(context.Context, ...string) ([]byte, error) { return nil, errors.New("systemctl was called") }
	f.created = mountns.Created{Namespace: namespaceOf("kubens"), Guarantees: mountns.Guarantees{HostToInside: true, Inside: true}}
	f.status = mountns.Status{
		Namespace: namespaceOf("kubens"), Guarantees: mountns.Guarantees{Inside: true},
		Reasons: []string{"1: the host's mount of / is private: run mount --make-shared /, then create the namespace again"},
		Members: []mountns.Process{{PID: 10, Command: "containerd", Daemon: "containerd"}, {PID: 11, Command: "containerd-shim"}},
	}
	return c, f
}

func TestMountNSCreate(t *testing.T) {
	t.Parallel()
	c, f := newMountCLI(t)
	assert.Equal(t, c.run("mountns", "create"), 0)
	golden.Assert(t, c.out.String(), "mountns-create.txt")
	for _, args := range [][]string{{"--name", "two", "--visible"}, {"--propagation", "private"}, {"--visible", "--propagation", "shared"}} {
		assert.Equal(t, c.run(append([]string{"mountns", "create"}, args...)...), 0)
	}
	assert.Equal(t, c.run("--name", "three", "mountns", "create", "-o", "json"), 0)
	assert.DeepEqual(t, f.calls, []string{"create kubens slave", "create two shared", "create kubens private", "create kubens shared", "create three slave"})
	for _, args := range [][]string{{"--visible", "--propagation", "slave"}, {"--propagation", "rslave"}, {"extra"}} {
		assert.Equal(t, c.run(append([]string{"mountns", "create"}, args...)...), errdefs.ExitConfig, "%v", args)
	}
	assert.Check(t, is.Len(f.calls, 5))
}

func TestMountNSExec(t *testing.T) {
	t.Parallel()
	c, f := newMountCLI(t)
	assert.Equal(t, c.run("mountns", "exec", "--name", "two", "--argv0", "-sh", "--", "sh", "-c", "x", "--name", "y"), 0)
	assert.Equal(t, c.run("mountns", "exec", "ls", "-l"), 0)
	c.env[mountns.EnvPin] = "/run/kubens/mnt"
	assert.Equal(t, c.run("mountns", "exec", "ls"), 0)
	assert.Equal(t, c.run("mountns", "exec", "--name", "kubens", "ls"), 0)
	delete(c.env, mountns.EnvPin)
	assert.Equal(t, c.err.String(), "")

	// Without a name and without the default namespace, the program runs in the current namespace.
	f.find = fmt.Errorf("find: %w", mountns.ErrNotFound)
	assert.Equal(t, c.run("mountns", "exec", "ls"), 0)
	assert.Equal(t, c.err.String(), "note: mount namespace kubens not found: executing ls in the current mount namespace\n")
	assert.Equal(t, c.run("mountns", "exec", "--name", "kubens", "ls"), 0)
	f.find = errors.New("a leftover")
	assert.Equal(t, c.run("mountns", "exec", "ls"), errdefs.ExitOther)
	assert.DeepEqual(t, f.calls, []string{
		`exec name=two pin= argv0=-sh ["sh" "-c" "x" "--name" "y"]`, `exec name=kubens pin= argv0= ["ls" "-l"]`,
		`exec name= pin=/run/kubens/mnt argv0= ["ls"]`, `exec name=kubens pin= argv0= ["ls"]`,
		`exec name= pin= argv0= ["ls"]`, `exec name=kubens pin= argv0= ["ls"]`,
	})
	f.find, f.execErr = nil, &mountns.StartError{Code: 127, Err: errors.New("execute x: not found")}
	assert.Equal(t, c.run("mountns", "exec", "x"), 127)
	assert.Equal(t, c.run("mountns", "exec"), errdefs.ExitConfig)
}

func TestMountNSStatus(t *testing.T) {
	t.Parallel()
	c, f := newMountCLI(t)
	assert.Equal(t, c.run("mountns", "status"), 0)
	f.status.Outside = []mountns.Process{{PID: 12, Command: "kubelet", Namespace: "mnt:[4026531841]", Daemon: "kubelet"}}
	assert.Equal(t, c.run("mountns", "status"), errdefs.ExitComponent)
	golden.Assert(t, c.out.String()+c.err.String(), "mountns-status.txt")
	c.out.Reset()
	c.err.Reset()
	assert.Equal(t, c.run("mountns", "status", "-o", "json"), errdefs.ExitComponent)
	var st mountns.Status
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &st))
	assert.DeepEqual(t, st, f.status)
	assert.Equal(t, c.err.String(), "")
}

func TestMountNSList(t *testing.T) {
	t.Parallel()
	c, f := newMountCLI(t)
	f.list = []mountns.Namespace{namespaceOf("kubens"), {Name: "old", Pin: "/run/rootlessnode/mountns/old", Fault: "nothing is pinned: stale file"}}
	assert.Equal(t, c.run("mountns", "list"), 0)
	golden.Assert(t, c.out.String(), "mountns-list.txt")
	c.out.Reset()
	assert.Equal(t, c.run("mountns", "list", "-o", "json"), 0)
	var list []mountns.Namespace
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &list))
	assert.DeepEqual(t, list, f.list)
}

func TestMountNSEnvAndDelete(t *testing.T) {
	t.Parallel()
	c, f := newMountCLI(t)
	assert.Equal(t, c.run("mountns", "env", "--name", "two"), 0)
	assert.Equal(t, c.out.String(), "KUBENSMNT=/run/rootlessnode/mountns/two\n")
	f.find = mountns.ErrNotFound
	assert.Equal(t, c.run("mountns", "env"), errdefs.ExitOther)
	assert.Equal(t, c.run("mountns", "delete"), 0)
	assert.Equal(t, c.run("mountns", "delete", "--force", "--name", "two"), 0)
	assert.DeepEqual(t, f.calls, []string{"delete kubens false", "delete two true"})
}

func TestMountNSDropIn(t *testing.T) {
	t.Parallel()
	c, _ := newMountCLI(t)
	assert.NilError(t, os.WriteFile(filepath.Join(c.unitDir, "kubelet.service"), []byte("[Service]\nExecStart=/usr/bin/kubelet $ARGS\n"), 0o644))
	reloads := 0
	c.systemctl = func(_ context.Context, args ...string) ([]byte, error) {
		if args[0] == "daemon-reload" {
			reloads++
		}
		return []byte("Id=kubelet.service\nLoadState=loaded\nPrivateTmp=yes\nFragmentPath=" + c.unitDir + "/kubelet.service\n"), nil
	}
	assert.Equal(t, c.run("mountns", "drop-in", "--dry-run", "--visible", "kubelet"), 0)
	golden.Assert(t, strings.ReplaceAll(c.out.String()+c.err.String(), c.unitDir, "DIR"), "mountns-drop-in.txt")
	entries, err := os.ReadDir(c.unitDir)
	assert.NilError(t, err)
	assert.Check(t, is.Len(entries, 1), "the dry run wrote files")

	c.out.Reset()
	assert.Equal(t, c.run("mountns", "drop-in", "kubelet"), 0)
	assert.Equal(t, strings.Count(c.out.String(), "written   "+c.unitDir), 2)
	assert.Equal(t, c.run("mountns", "drop-in", "kubelet"), 0)
	assert.Check(t, is.Contains(c.out.String(), "nothing to change\n"))
	assert.NilError(t, os.WriteFile(filepath.Join(c.unitDir, "kubelet.service"), []byte("[Service]\nExecStart=/usr/local/bin/kubelet\n"), 0o644))
	assert.Equal(t, c.run("mountns", "status"), 0)
	assert.Check(t, is.Contains(c.out.String(), "drop-in      kubelet.service: its command has changed since the drop-in was written\n"))
	c.out.Reset()
	assert.Equal(t, c.run("mountns", "drop-in", "remove", "kubelet"), 0)
	assert.Equal(t, strings.Count(c.out.String(), "removed   "+c.unitDir), 2)
	assert.Equal(t, reloads, 2)
	entries, err = os.ReadDir(c.unitDir)
	assert.NilError(t, err)
	assert.Check(t, is.Len(entries, 1))

	for _, args := range [][]string{{}, {"kubelet", "--name", "A"}, {"kubelet", "--propagation", "x"}} {
		assert.Equal(t, c.run(append([]string{"mountns", "drop-in"}, args...)...), errdefs.ExitConfig, "%v", args)
	}
}

func TestMounts(t *testing.T) {
	t.Parallel()
	text := "42 41 254:0 / / rw - ext4 /dev/sda rw\n85 77 0:945 / /var/lib/kubelet/pods/uid/volumes/kubernetes.io~empty-dir/cache rw - tmpfs tmpfs rw\n\n"
	c := newCLI(t)
	code := 0
	c.node.exec = func(r nodeexec.Request) (int, error) {
		assert.DeepEqual(t, r.Argv, mountview.Command())
		_, err := r.Stdout.WriteString(text)
		return code, err
	}
	assert.Equal(t, c.run("mounts"), 0)
	assert.Check(t, is.Contains(c.out.String(), "uid   volume cache   1\n"), c.out.String())
	assert.Check(t, is.Contains(c.out.String(), "\n\nthe host sees 0 of the "), c.out.String())
	c.out.Reset()
	assert.Equal(t, c.run("mounts", "-o", "json"), 0)
	var v mountview.View
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &v))
	assert.Check(t, is.Len(v.Mounts, 2))
	code = 2
	assert.Equal(t, c.run("mounts"), errdefs.ExitOther)
}
