package cgroupv2

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

func TestLimit(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	for _, file := range []string{cpuMaxFile, memoryMaxFile} {
		f.put("/s", file, noLimit+"\n")
	}
	s := &Subtree{path: filepath.Join(f.mount, "s"), o: f.o}
	assert.DeepEqual(t, s.Limit(layout.Limits{CPUMilli: 1500, MemoryBytes: 4 << 30, Pids: 100}), map[string]string{"pids": "no such file or directory"})
	for file, want := range map[string]string{cpuMaxFile: "150000 100000", memoryMaxFile: "4294967296"} {
		b, err := os.ReadFile(filepath.Join(f.mount, "s", file))
		assert.NilError(t, err)
		assert.Equal(t, string(b), want, file)
	}
	_, err := os.Stat(filepath.Join(f.mount, "s", pidsMaxFile))
	assert.ErrorIs(t, err, os.ErrNotExist, "a limit must not make the file")
	assert.Equal(t, len(s.Limit(layout.Limits{})), 0, "no limits are requested")
}

func TestCeiling(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	f.put("/", memoryMaxFile, "8589934592\n") // in a container the mount point is not the root of the tree
	f.put("/a", cpuMaxFile, "max 100000\n")
	f.put("/a", pidsMaxFile, "5000\n")
	f.put("/a/b", cpuMaxFile, "250000 50000\n")
	f.put("/a/b", memoryMaxFile, "max\n")
	f.put("/a/b", pidsMaxFile, "6000\n")
	at := func(dir string) layout.Limits { return ceiling(f.mount, filepath.Join(f.mount, dir)) }
	assert.Equal(t, at("/a/b"), layout.Limits{CPUMilli: 5000, MemoryBytes: 8 << 30, Pids: 5000})
	f.put("/a/b", cpusetFile, "0-1,4\n")
	assert.Equal(t, at("/a/b").CPUMilli, int64(3000))
	assert.Equal(t, at("/a"), layout.Limits{MemoryBytes: 8 << 30, Pids: 5000})
	f.put("/a/b", cpuMaxFile, "garbage\n")
	f.put("/a/b", memoryMaxFile, "garbage\n")
	assert.Equal(t, at("/a/b"), layout.Limits{CPUMilli: 3000, MemoryBytes: 8 << 30, Pids: 5000})
}

func TestSubtreeCeilingSeesTheWholeTree(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	f.put("/a", pidsMaxFile, "5000\n")
	f.put("/a/s", pidsMaxFile, "max\n")
	o := f.o
	o.MountInfo, o.ProcSelfCgroup = filepath.Join(f.mount, "mountinfo"), filepath.Join(f.mount, "self")
	f.put("/", "mountinfo", strings.ReplaceAll("30 23 0:26 / MOUNT rw - cgroup2 cgroup rw\n", "MOUNT", f.mount))
	f.put("/", "self", "0::/a/s\n")
	assert.Equal(t, (&Subtree{path: filepath.Join(f.mount, "a/s"), o: o.withDefaults()}).Ceiling(), layout.Limits{Pids: 5000})
}
