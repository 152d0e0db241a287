package hostsetup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// TestIDMapStep checks that in a container without CAP_SYS_ADMIN file capabilities replace set-uid root, and that undo reverts it.
func TestIDMapStep(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Root)
	f := newHost(t, false)
	find := f.o.LookPath
	f.o.LookPath = func(program string) string {
		if strings.HasPrefix(program, "new") {
			return f.path("bin/" + program)
		}
		return find(program)
	}
	mode := func(program string) os.FileMode {
		st, err := os.Stat(f.path("bin/" + program))
		assert.NilError(t, err)
		return st.Mode()
	}
	step := func() Step {
		p, err := NewPlan(f.o)
		assert.NilError(t, err)
		s, err := idMapStep(p)
		assert.NilError(t, err)
		return s
	}
	for _, program := range []string{"newuidmap", "newgidmap"} {
		f.write("bin/"+program, "")
		assert.NilError(t, os.Chmod(f.path("bin/"+program), 0o755|os.ModeSetuid))
	}
	assert.Equal(t, step().Name, "", "the capabilities are unknown")
	f.write("proc/self/status", "CapBnd:\t000001ffffffffff\n")
	assert.Equal(t, step().Name, "", "root has all capabilities")

	f.write("proc/self/status", "CapBnd:\t00000000a80425fb\n") // Docker's
	s := step()
	assert.DeepEqual(t, s.Commands[:2], []string{"setcap cap_setuid=ep " + f.path("bin/newuidmap"), "chmod u-s " + f.path("bin/newuidmap")})
	needed, err := s.Needed()
	assert.NilError(t, err)
	assert.Assert(t, needed)
	assert.NilError(t, s.Do(t.Context()))
	for program, bit := range map[string]byte{"newuidmap": 1 << unix.CAP_SETUID, "newgidmap": 1 << unix.CAP_SETGID} {
		assert.Equal(t, mode(program), os.FileMode(0o755))
		attr := make([]byte, 64)
		n, err := unix.Getxattr(f.path("bin/"+program), capabilityAttr, attr)
		assert.NilError(t, err)
		assert.Assert(t, n >= 20)
		assert.Equal(t, attr[4], bit)
	}
	needed, err = step().Needed()
	assert.NilError(t, err)
	assert.Assert(t, !needed, "it is done already")
	assert.NilError(t, s.Undo(t.Context()))
	for _, program := range []string{"newuidmap", "newgidmap"} {
		assert.Equal(t, mode(program), 0o755|os.ModeSetuid)
		_, err := unix.Getxattr(f.path("bin/"+program), capabilityAttr, make([]byte, 64))
		assert.ErrorIs(t, err, unix.ENODATA)
	}
	assert.NilError(t, os.Remove(f.path("bin/newuidmap")))
	assert.NilError(t, s.Undo(t.Context()), "a program that is gone")
}

// TestReadOnlyCgroups checks that the hint is an option of the container engine, and that no command is suggested that would fail.
func TestReadOnlyCgroups(t *testing.T) {
	t.Parallel()
	f := newHost(t, false)
	f.write(".dockerenv", "")
	f.write("proc/self/mountinfo", "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 21 0:26 / "+f.path("cgroup")+" ro - cgroup2 cgroup2 rw\n")
	p, err := NewPlan(f.o)
	assert.NilError(t, err)
	s, err := cgroupStep(p)
	assert.NilError(t, err)
	assert.Equal(t, len(s.Commands), 0)
	err = s.Do(t.Context())
	assert.ErrorContains(t, err, "mounted read-only")
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.Assert(t, strings.Contains(errdefs.ReportOf(err).Hints[0], "# Docker 28 or later: docker run"), errdefs.ReportOf(err).Hints[0])
	_, err = os.Stat(filepath.Join(f.path("cgroup"), "rootlessnode"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// TestNoDevice checks that root that may not create devices learns how the container gets one.
func TestNoDevice(t *testing.T) {
	t.Parallel()
	f := newHost(t, false)
	f.write("run/.containerenv", "")
	p, err := NewPlan(f.o)
	assert.NilError(t, err)
	err = noDevice(p.env, &os.PathError{Op: "mknod", Path: "/dev/net/tun", Err: unix.EPERM})
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.Equal(t, errdefs.ReportOf(err).Hints[0], "# start the container with other options:\n# Podman: podman run --device /dev/net/tun")
	assert.Equal(t, noDevice(p.env, unix.EROFS), unix.EROFS)
}
