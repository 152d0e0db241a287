package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// noTrace fails the test unless the processes, mounts, cgroups, sockets and locks of a node disappear from the host within a few seconds.
func noTrace(t *testing.T, name string) {
	t.Helper()
	noTraceIn(t, os.Getenv("XDG_RUNTIME_DIR"), name)
}

// noTraceIn is noTrace for an account with this XDG_RUNTIME_DIR.
func noTraceIn(t *testing.T, runtimeDir, name string) {
	t.Helper()
	eventually(t, 10*time.Second, "nothing of the node "+name+" is left", func() error { return traceIn(runtimeDir, name) })
}

func trace(name string) error { return traceIn(os.Getenv("XDG_RUNTIME_DIR"), name) }

func traceIn(runtimeDir, name string) error {
	runtime := filepath.Join(runtimeDir, "rootlessnode", name)
	for _, p := range []string{runtime, runtime + ".lock"} {
		if _, err := os.Lstat(p); err == nil {
			return fmt.Errorf("%s is left", p)
		}
	}
	if left := processes(name); len(left) > 0 {
		return fmt.Errorf("processes are left: %s", strings.Join(left, "; "))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if strings.Contains(string(mounts), "/rootlessnode/nodes/"+name) {
		return fmt.Errorf("mounts are left: %s", mounts)
	}
	return cgroupsLeft(name)
}

func cgroupsLeft(name string) error {
	mount, err := testutil.Cgroup2Mount()
	if err != nil {
		return err
	}
	return filepath.WalkDir(mount, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "rootlessnode-"+name {
			return fmt.Errorf("cgroup %s is left", path)
		}
		return nil
	})
}

// processes lists the processes in the node's cgroup, and rootlessnode processes with the node's name in their command line.
func processes(name string) []string {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []string
	for _, dir := range dirs {
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(cmdline) == 0 {
			continue
		}
		cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		text := strings.ReplaceAll(string(cmdline), "\x00", " ")
		if strings.Contains(string(cgroup), "/rootlessnode-"+name+"/") || strings.HasSuffix(strings.TrimSpace(string(cgroup)), "/rootlessnode-"+name) ||
			strings.HasPrefix(text, "rootlessnode --name "+name+" parent") || strings.HasPrefix(text, "rootlessnode: guard of ") && strings.Contains(text, "/rootlessnode/"+name+" ") {
			found = append(found, filepath.Base(dir)+" "+text)
		}
	}
	return found
}

// uidOf returns the real uid of a process as the host sees it, unless it has ended.
func uidOf(t *testing.T, pid string) (uid int, alive bool) {
	t.Helper()
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, false
	}
	assert.NilError(t, err)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Uid:" {
			uid, err := strconv.Atoi(f[1])
			assert.NilError(t, err)
			return uid, true
		}
	}
	t.Fatalf("process %s has no uid", pid)
	return 0, false
}
