package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func num[T any](v T) *T { return &v }

func use(cpuUsec, memory, pids uint64, fromProc ...string) cgroupv2.Usage {
	return cgroupv2.Usage{CPUUsec: &cpuUsec, MemoryBytes: &memory, WorkingSetBytes: num(memory / 2), Pids: &pids, FromProc: fromProc}
}

// topSample returns a snapshot with pods that have cgroups, and one whose containers have separate cgroups.
func topSample() topSnapshot {
	const mi = 1 << 20
	names := map[string]podName{
		"c1": {"web", "default", "uid-1"}, "c2": {"db", "data", "uid-2"}, "c3": {"db", "data", "uid-2"}, "c4": {},
	}
	before := cgroupv2.Survey{
		Node:       use(10e6, 900*mi, 200),
		Components: map[string]cgroupv2.Usage{"kubelet": use(1e6, 60*mi, 20), "etcd": use(5e6, 50*mi, 11)},
		Pods:       []cgroupv2.PodUsage{{UID: "uid-1", Containers: []string{"c1"}, Usage: use(3e6, mi, 1)}, {Containers: []string{"c2"}, Usage: use(1e6, mi, 1)}},
	}
	now := cgroupv2.Survey{
		Node:       use(12e6, 1000*mi, 201, "memory"),
		Components: map[string]cgroupv2.Usage{"kubelet": use(15e5, 61*mi, 21, "memory"), "etcd": use(4e6, 50*mi, 11, "cpu"), "new": use(7, 1, 1)},
		Pods: []cgroupv2.PodUsage{
			{UID: "uid-1", Containers: []string{"c1"}, Usage: use(4e6, 2*mi, 2)},
			{Containers: []string{"c2"}, Usage: use(1e6, 3*mi, 3)}, {Containers: []string{"c3"}, Usage: use(1e6, 4*mi, 4)},
			{UID: "uid-9", Usage: use(1, 5, 5)}, {Containers: []string{"c4"}, Usage: use(1, 6, 6)},
		},
	}
	now.Components["kubelet"] = now.Components["kubelet"].Add(cgroupv2.Usage{IOReadBytes: num[uint64](3000), IOWriteBytes: num[uint64](100)})
	before.Components["kubelet"] = before.Components["kubelet"].Add(cgroupv2.Usage{IOReadBytes: num[uint64](1000), IOWriteBytes: num[uint64](100)})
	p := newTopSnapshot(now, before, 2*time.Second, names)
	p.Time, p.Ceiling = t0, layout.Limits{CPUMilli: 2000, MemoryBytes: 4 << 30}
	return p
}

func TestTopSnapshot(t *testing.T) {
	t.Parallel()
	p := topSample()
	assert.Equal(t, *p.Node.CPU, 1.0)
	assert.Equal(t, p.Components[0].Name, "kubelet", "the busiest is first")
	assert.Equal(t, *p.Components[0].ReadPerSecond, 1000.0)
	assert.Equal(t, *p.Components[0].WritePerSecond, 0.0)
	byName := map[string]topRow{}
	for _, r := range append(p.Components, p.Pods...) {
		byName[r.Name+r.UID] = r
	}
	assert.Equal(t, *byName["etcd"].CPU, 0.0, "a sum over processes may decrease")
	assert.Assert(t, byName["new"].CPU == nil, "a new component has no rate")
	assert.Equal(t, *byName["dbuid-2"].Pids, uint64(7), "the containers of a pod are one row")
	assert.Equal(t, *byName["dbuid-2"].CPU, 0.5, "the usage of a new container counts")
	golden.Assert(t, strings.Join(renderTop(p, style{}), "\n")+"\n", "top.txt")
}

// fakeSubtree creates the cgroup of a node from ordinary files.
func fakeSubtree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for path, usec := range map[string]int{"": 10, "system/kubelet": 4, "kubepods/burstable/podu1": 3, "kubepods/burstable/podu1/c1": 1} {
		for file, text := range map[string]string{
			"cgroup.procs": "", "cpu.stat": fmt.Sprintf("usage_usec %d\n", usec), "memory.current": "1048576\n", "pids.current": "3\n",
		} {
			assert.NilError(t, os.MkdirAll(filepath.Join(dir, path), 0o755))
			assert.NilError(t, os.WriteFile(filepath.Join(dir, path, file), []byte(text), 0o644))
		}
	}
	return dir
}

func topCLI(t *testing.T) *cli {
	t.Helper()
	c := newCLI(t)
	c.node.statuses = []status.Status{{Name: "default", State: status.NodeReady, Cgroup: status.Cgroup{Path: fakeSubtree(t)}}}
	clock := t0
	c.now = func() time.Time { clock = clock.Add(time.Second); return clock }
	c.node.exec = func(r nodeexec.Request) (int, error) {
		assert.DeepEqual(t, r.Argv[3:], []string{"sh", "c1"}[:len(r.Argv)-3])
		_, err := fmt.Fprint(r.Stdout, `[{"id":"c1","pod":"web","namespace":"default","uid":"u1"}]`)
		return 0, err
	}
	return c
}

func TestTopJSON(t *testing.T) {
	t.Parallel()
	c := topCLI(t)
	assert.Equal(t, c.run("top", "-o", "json", "-n", "200ms"), 0, c.err.String())
	var p topSnapshot
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &p))
	assert.Equal(t, p.Interval, 1.0)
	assert.Equal(t, *p.Node.Pids, uint64(3))
	assert.Equal(t, *p.Components[0].CPU, 0.0)
	assert.Equal(t, p.Components[0].Name, "kubelet")
	assert.Equal(t, p.Pods[0].Namespace+"/"+p.Pods[0].Name, "default/web")
}

func TestTopWithoutARuntimeShowsUIDs(t *testing.T) {
	t.Parallel()
	c := topCLI(t)
	c.node.exec = func(nodeexec.Request) (int, error) { return 1, errors.New("no exec") }
	assert.Equal(t, c.run("top", "-n", "200ms"), 0, c.err.String())
	assert.Assert(t, is.Contains(c.out.String(), "  uid u1"))
}

func TestTopErrors(t *testing.T) {
	t.Parallel()
	c := topCLI(t)
	assert.Equal(t, c.run("top", "-n", "10ms"), 2)
	assert.Assert(t, is.Contains(c.err.String(), "must be at least 200ms"))
	c = newCLI(t)
	assert.Equal(t, c.run("top"), 1, "not running")
	assert.Assert(t, is.Contains(c.err.String(), "it has no cgroup"))
	c = topCLI(t)
	c.node.statuses[0].Cgroup.Path += "/gone"
	assert.Equal(t, c.run("top"), 1)
	assert.Assert(t, is.Contains(c.err.String(), "its cgroup no longer exists"))
}

func TestPodNamesAreCached(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	asked := 0
	c.node.exec = func(r nodeexec.Request) (int, error) {
		asked++
		_, err := fmt.Fprint(r.Stdout, "[]")
		return 0, err
	}
	p := podNames{known: map[string]podName{}}
	for range 3 {
		p.learn(t.Context(), c.node, []cgroupv2.PodUsage{{Containers: []string{"c1"}}})
	}
	assert.Equal(t, asked, 1, "unknown containers are cached")
	c.node.exec = func(nodeexec.Request) (int, error) { asked++; return 0, errors.New("down") }
	for range skipRounds + 1 {
		p.learn(t.Context(), c.node, []cgroupv2.PodUsage{{Containers: []string{"c2"}}})
	}
	assert.Equal(t, asked, 2, "a runtime that does not answer is skipped for some rounds")
	p.learn(t.Context(), c.node, []cgroupv2.PodUsage{{Containers: []string{"c2"}}})
	assert.Equal(t, asked, 3)
}

func TestFitHeight(t *testing.T) {
	t.Parallel()
	lines := []string{"a", "b", "c", "d"}
	assert.DeepEqual(t, fitHeight(lines, 0), lines)
	assert.DeepEqual(t, fitHeight(lines, 5), lines)
	assert.DeepEqual(t, fitHeight(lines, 4), []string{"a", "b", "2 more lines"})
}

// terminal opens a pseudo terminal. near is the ptmx side, far the pts side.
func terminal(t *testing.T) (near, far *os.File) {
	t.Helper()
	testutil.Require(t, testutil.Requirement{Name: "pty", Check: func() error { _, err := os.Stat("/dev/ptmx"); return err }})
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	assert.NilError(t, err)
	near = os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() { _ = near.Close() })
	assert.NilError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	assert.NilError(t, err)
	far, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	assert.NilError(t, err)
	t.Cleanup(func() { _ = far.Close() })
	return near, far
}

// TestTopLive checks that q ends the live view and that the terminal settings are restored.
func TestTopLive(t *testing.T) {
	t.Parallel()
	near, far := terminal(t)
	before, err := unix.IoctlGetTermios(int(far.Fd()), unix.TCGETS)
	assert.NilError(t, err)
	c := topCLI(t)
	out := &outputBuffer{more: make(chan struct{}, 1)}
	c.stdin, c.stdout, c.app.out = far, far, out
	ended := make(chan int, 1)
	go func() { ended <- c.run("top", "-n", "200ms") }()
	out.awaitFunc(t, "a table with the pod", func(got string) bool { return strings.Contains(got, "default/web") })
	during, err := unix.IoctlGetTermios(int(far.Fd()), unix.TCGETS)
	assert.NilError(t, err)
	assert.Assert(t, during.Lflag&unix.ICANON == 0 && during.Lflag&unix.ISIG != 0)
	_, err = near.WriteString("xq")
	assert.NilError(t, err)
	select {
	case code := <-ended:
		assert.Equal(t, code, 0, c.err.String())
	case <-time.After(10 * time.Second):
		t.Fatal("top has not ended 10 s after q")
	}
	after, err := unix.IoctlGetTermios(int(far.Fd()), unix.TCGETS)
	assert.NilError(t, err)
	assert.DeepEqual(t, *after, *before)
}

func TestTopLiveEndsWithTheNode(t *testing.T) {
	t.Parallel()
	_, far := terminal(t)
	c := topCLI(t)
	c.stdin, c.stdout, c.app.out = far, far, &bytes.Buffer{}
	assert.NilError(t, os.RemoveAll(c.node.statuses[0].Cgroup.Path))
	assert.Equal(t, c.run("top", "-n", "200ms"), 1)
}
