package noderole

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func TestThreshold(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]uint64{"1%": 20, "100Mi": 100 << 20, "": 0, "0.5%": 10} {
		assert.Check(t, is.Equal(parseThreshold("nodefs.available", value).of(2000), want), value)
	}
}

func TestDiskCheck(t *testing.T) {
	t.Parallel()
	one := parseThreshold("nodefs.available", "1%")
	inodes := parseThreshold("nodefs.inodesFree", "1%")
	plenty := usage{bytes: 1000, freeBytes: 500, inodes: 1000, freeInodes: 500}
	with := func(f func(*usage)) usage { u := plenty; f(&u); return u }
	for _, tc := range []struct {
		name    string
		u       usage
		try     error
		reason  string
		message string
		warning bool
	}{
		{"free", plenty, nil, "", "", false},
		{"no inode counts", usage{bytes: 1000, freeBytes: 500}, nil, "", "", false},
		{"below the threshold", with(func(u *usage) { u.freeBytes = 9 }), nil, reasonFull, "the data dir /d: 0.9 % of 0.0 MiB are free, less than nodefs.available (1%)", false},
		{"close to it", with(func(u *usage) { u.freeBytes = 19 }), nil, reasonNearlyFull, "1.9 % of 0.0 MiB are free, close to nodefs.available (1%)", true},
		{"few inodes", with(func(u *usage) { u.freeInodes = 1 }), nil, reasonFull, "0.1 % of 1000 inodes are free, less than nodefs.inodesFree (1%)", false},
		{"read-only", plenty, unix.EROFS, reasonReadOnly, "write to the data dir /d: read-only file system", false},
		{"full", plenty, unix.ENOSPC, reasonFull, "no space left on device", false},
		{"quota", plenty, fmt.Errorf("write: %w", unix.EDQUOT), reasonQuota, "disk quota exceeded", false},
		{"broken disk", plenty, unix.EIO, reasonWriteFailed, "input/output error", false},
	} {
		w := diskWatch{
			systems: []fileSystem{{"the data dir", "/d", one, inodes}},
			usage:   func(string) (usage, error) { return tc.u, nil }, try: func(string) error { return tc.try },
		}
		c := w.check()
		assert.Check(t, is.Equal(c.Reason, tc.reason), tc.name)
		assert.Check(t, is.Contains(c.Message, tc.message), tc.name)
		assert.Check(t, is.Equal(c.OK, tc.reason == "" || tc.warning), tc.name)
		assert.Check(t, is.Equal(c.Warning, tc.warning), tc.name)
		assert.Check(t, is.Equal(len(c.Steps) > 0, tc.reason != ""), tc.name)
	}
}

// TestRealDisk checks the system calls with a directory of this machine.
func TestRealDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	assert.NilError(t, tryWrite(dir))
	assert.ErrorIs(t, tryWrite(dir+"/missing"), unix.ENOENT)
	u, err := diskUsage(dir)
	assert.NilError(t, err)
	assert.Assert(t, u.bytes > u.freeBytes)
	_, err = diskUsage(dir + "/missing")
	assert.ErrorIs(t, err, unix.ENOENT)
}

// TestDiskHangs checks that a check that does not return is reported, and that its later result counts.
func TestDiskHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan error)
		hub := status.NewHub(status.Status{}, status.Options{})
		runConditions(t, hub, map[string]conditionWatch{status.ConditionDisk: diskWatch{
			systems: []fileSystem{{name: "the data dir", dir: "/d"}},
			usage:   func(string) (usage, error) { return usage{}, nil }, try: func(string) error { return <-answers },
		}})
		state := func(after time.Duration) *status.Condition {
			time.Sleep(after)
			synctest.Wait()
			s := hub.Snapshot()
			return s.Condition(status.ConditionDisk)
		}
		assert.Assert(t, state(time.Second) == nil)
		c := state(time.Hour)
		assert.Equal(t, c.Reason+" "+c.Message, "NotResponding the file system of /d does not respond within 10s")
		answers <- nil
		assert.Assert(t, state(0).OK)
		time.Sleep(diskInterval)
		answers <- errors.New("x")
		assert.Equal(t, state(0).Reason, reasonWriteFailed)
		time.Sleep(diskInterval)
		answers <- nil
		assert.Assert(t, state(0).OK)
	})
}
