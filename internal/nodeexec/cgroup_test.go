package nodeexec

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// leaves returns a function that creates a cgroup for each program below a cgroup of the test. Usually only root can create cgroups.
func leaves(t *testing.T) (dir string, forProgram func(string) (string, func(), error), removed chan error) {
	t.Helper()
	testutil.Require(t, testutil.Root, testutil.Cgroup2)
	mount, err := testutil.Cgroup2Mount()
	assert.NilError(t, err)
	dir, err = os.MkdirTemp(mount, "nodeexec-test-")
	if err != nil {
		t.Skipf("requirement: a writable cgroup tree: %v", err)
	}
	t.Cleanup(func() { assert.NilError(t, os.Remove(dir)) })
	removed = make(chan error, 8)
	return dir, func(id string) (string, func(), error) {
		leaf := filepath.Join(dir, id)
		return leaf, func() { removed <- removeEmpty(leaf) }, os.Mkdir(leaf, 0o755)
	}, removed
}

// removeEmpty removes a cgroup whose processes are ending.
func removeEmpty(leaf string) error {
	deadline := time.Now().Add(patience)
	for {
		err := os.Remove(leaf)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func TestProgramRunsInItsOwnCgroup(t *testing.T) {
	t.Parallel()
	dir, forProgram, removed := leaves(t)
	s := serve(t, Options{CgroupFor: forProgram})
	out, code, err := s.run(t, Request{Argv: []string{"cat", "/proc/self/cgroup"}})
	assert.NilError(t, err)
	assert.Equal(t, code, 0)
	assert.Check(t, is.Contains(out, filepath.Base(dir)+"/1\n"))
	assert.NilError(t, <-removed)

	_, code, err = s.run(t, Request{Argv: []string{"no-such-program"}})
	assert.Check(t, err != nil && code == ExitNotFound)
	assert.NilError(t, <-removed) // the cgroup of a program that could not be started is removed too
}

// TestDaemonEndsWithItsProgram checks that a process outside of the session and the process group is killed through the cgroup.
func TestDaemonEndsWithItsProgram(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Program("setsid"))
	_, forProgram, removed := leaves(t)
	s := serve(t, Options{CgroupFor: forProgram})
	r, w := pipe(t)
	code, err := Run(t.Context(), s.socket, Request{Argv: sh("setsid -f sh -c 'echo up; exec sleep 1000'; exit 4"), Stdout: w})
	assert.NilError(t, errors.Join(err, w.Close()))
	assert.Equal(t, code, 4)
	r.gone()
	assert.NilError(t, <-removed)
}

func TestCgroupMissing(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{CgroupFor: func(string) (string, func(), error) { return "/no/such/cgroup", nil, nil }})
	_, code, err := s.run(t, Request{Argv: []string{"true"}})
	assert.Equal(t, code, 1)
	assert.Check(t, strings.HasPrefix(err.Error(), "open cgroup /no/such/cgroup: "))
}
