package cgroupv2

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// fakeProcess adds a process to a fake /proc. CPU time is in ticks of 10 ms, resident memory in pages.
func fakeProcess(t *testing.T, processes proc.FS, pid, ticks, threads, pages int) {
	t.Helper()
	dir := processes.File(pid, "")
	assert.NilError(t, os.MkdirAll(dir, 0o755))
	text := fmt.Sprintf("%d (a) (b c) S 1 1 1 0 -1 0 0 0 0 0 %d %d 0 0 20 0 %d 0 5 1000 %d 18446744073709551615\n", pid, ticks-1, 1, threads, pages)
	assert.NilError(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o644))
}

func TestReadUsage(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	processes := proc.FS(t.TempDir())
	f.delegated("/a", "cpu memory pids io")
	for file, text := range map[string]string{
		"cpu.stat": "usage_usec 12\nuser_usec 5\nsystem_usec 7\n", "memory.current": "4096\n", "pids.current": "3\n",
		"memory.stat": "anon 1\nactive_file 7\ninactive_file 1000\n",
		"io.stat":     "8:0 rbytes=10 wbytes=1 rios=2 wios=3 dbytes=9 dios=0\n8:16 rbytes=5 wbytes=0\n",
	} {
		f.put("/a", file, text)
	}
	u, err := readUsage(filepath.Join(f.mount, "a"), processes)
	assert.NilError(t, err)
	assert.DeepEqual(t, u, Usage{
		CPUUsec: ptr[uint64](12), MemoryBytes: ptr[uint64](4096), WorkingSetBytes: ptr[uint64](3096), Pids: ptr[uint64](3),
		IOReadBytes: ptr[uint64](15), IOWriteBytes: ptr[uint64](1),
	})
	_, err = readUsage(filepath.Join(f.mount, "absent"), processes)
	assert.ErrorIs(t, err, os.ErrNotExist)

	f.put("/a", "io.stat", "")
	f.put("/a", "memory.stat", "inactive_file 9999\n")
	u, err = readUsage(filepath.Join(f.mount, "a"), processes)
	assert.NilError(t, err)
	assert.Equal(t, *u.IOReadBytes, uint64(0))
	assert.Equal(t, *u.WorkingSetBytes, uint64(0), "never negative")
}

// TestReadUsageFromProcesses checks that the usage of all processes is summed where the controllers are missing, and that
// values of the kernel take precedence.
func TestReadUsageFromProcesses(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	processes := proc.FS(t.TempDir())
	page := uint64(os.Getpagesize())
	f.delegated("/a", "")
	f.delegated("/a/b", "")
	f.put("/a", procsFile, "7\n")
	f.put("/a/b", procsFile, "0\n8\n9\n") // 0: in another pid namespace; 9 has ended
	fakeProcess(t, processes, 7, 5, 2, 10)
	fakeProcess(t, processes, 8, 10, 1, 1)
	u, err := readUsage(filepath.Join(f.mount, "a"), processes)
	assert.NilError(t, err)
	assert.DeepEqual(t, u, Usage{
		CPUUsec: ptr[uint64](150000), MemoryBytes: ptr(11 * page), WorkingSetBytes: ptr(11 * page), Pids: ptr[uint64](3),
		FromProc: []string{"cpu", "memory", "pids"},
	})
	f.put("/a", "cpu.stat", "usage_usec 99\n")
	f.put("/a", "pids.current", "5\n")
	u, err = readUsage(filepath.Join(f.mount, "a"), processes)
	assert.NilError(t, err)
	assert.Equal(t, *u.CPUUsec, uint64(99))
	assert.Equal(t, *u.Pids, uint64(5))
	assert.DeepEqual(t, u.FromProc, []string{"memory"})
}

func TestAddUsage(t *testing.T) {
	t.Parallel()
	a := Usage{CPUUsec: ptr[uint64](1), Pids: ptr[uint64](2), FromProc: []string{"memory"}}
	b := Usage{CPUUsec: ptr[uint64](10), MemoryBytes: ptr[uint64](5), FromProc: []string{"cpu", "memory"}}
	want := Usage{CPUUsec: ptr[uint64](11), Pids: ptr[uint64](2), MemoryBytes: ptr[uint64](5), FromProc: []string{"cpu", "memory"}}
	assert.DeepEqual(t, a.Add(b), want)
	assert.DeepEqual(t, b.Add(a), want)
	assert.Equal(t, *a.CPUUsec, uint64(1), "Add does not change its operands")
}

func TestReadSurvey(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	for _, c := range []string{
		"", "/system", "/system/kubelet", "/system/exec", "/system/exec/1", "/kubepods", "/kubepods/burstable", "/kubepods/burstable/pod1-2",
		"/kubepods/burstable/pod1-2/abc", "/kubepods/besteffort", "/kubepods/pod3", "/kubepods/def",
	} {
		f.delegated("/s"+c, "")
	}
	f.put("/s/kubepods/burstable/pod1-2", "pids.current", "4\n")
	s, err := ReadSurvey(filepath.Join(f.mount, "s"))
	assert.NilError(t, err)
	assert.Equal(t, len(s.Components), 2)
	got := map[string][]string{}
	for _, p := range s.Pods {
		got[p.UID] = p.Containers
		if p.UID == "1-2" {
			assert.Equal(t, *p.Usage.Pids, uint64(4))
		}
	}
	assert.DeepEqual(t, got, map[string][]string{"1-2": {"abc"}, "3": nil, "": {"def"}})

	_, err = ReadSurvey(filepath.Join(f.mount, "nowhere"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestContainerIDs(t *testing.T) {
	t.Parallel()
	assert.DeepEqual(t, containerIDs([]string{"0a1b", "crio-2c3d", "crio-conmon-2c3d"}), []string{"0a1b", "2c3d"})
}
