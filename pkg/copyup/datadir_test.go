package copyup

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

func TestDataDirFindings(t *testing.T) {
	t.Parallel()
	tests := []struct {
		fsType, options, super string
		want                   []string // one for each finding: refuse or warn, then parts of the message and of the hint
	}{
		{"ext4", "rw,relatime", "rw,errors=remount-ro", nil},
		{"xfs", "rw", "rw", nil},
		{"ext4", "rw,nosuid,nodev", "rw", []string{"warn|flags nosuid,nodev (/home)|remount,suid,dev /home"}},
		{"ext4", "rw,noexec", "rw", []string{"warn|flags noexec|remount,exec /home"}},
		{"ext4", "ro", "rw", []string{"refuse|read-only|can be written"}},
		{"ext4", "rw", "ro", []string{"refuse|read-only|can be written"}},
		{"ext4", "rw,nosymfollow", "rw", []string{"refuse|flag nosymfollow (/home)|remount,symfollow /home"}},
		{"ext4", "rw,idmapped", "rw", []string{"warn|id-mapped|without id mapping"}},
		{"nfs4", "rw,nosuid", "rw", []string{"refuse|is on nfs4 (mounted at /home)|local disk", "warn|nosuid|remount,suid"}},
		{"cifs", "rw", "rw", []string{"refuse|cifs|local disk"}},
		{"lustre", "rw", "rw", []string{"refuse|lustre|local disk"}},
		{"fuse.sshfs", "rw", "rw", []string{"refuse|fuse.sshfs|local disk"}},
		{"fuse.mergerfs", "rw", "rw", []string{"warn|fuse.mergerfs|lchown"}},
		{"fuseblk", "rw", "rw", []string{"warn|fuseblk|lchown"}},
	}
	for _, tc := range tests {
		t.Run(tc.fsType+" "+tc.options, func(t *testing.T) {
			t.Parallel()
			m := mountFrom("/home/u", "/home", "src", tc.fsType, tc.options, tc.super)
			found := DataDirFindings(m)
			assert.Equal(t, len(found), len(tc.want), "%v", found)
			for i, want := range tc.want {
				words := strings.Split(want, "|")
				assert.Equal(t, found[i].Refuse, words[0] == "refuse")
				assert.Assert(t, is.Contains(found[i].Message, words[1]))
				assert.Assert(t, is.Contains(found[i].Hint, words[2]))
			}
		})
	}
}

func TestMountFlags(t *testing.T) {
	prepare := func(t *testing.T, host string, _ int) { makeTree(t, host, "a/", "b/", "link -> a") }
	inside(t, prepare, nil, func(t *testing.T, host string) {
		mount(t, "under", host+"/a", "tmpfs", 0, "")
		makeTree(t, host, "a/deep/")
		mount(t, "deep", host+"/a/deep", "tmpfs", unix.MS_NOEXEC, "")
		mount(t, "over", host+"/a", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "") // covers the mount below it
		makeTree(t, host, "a/deep/")
		for _, path := range []string{"/a", "/a/deep", "/a/deep/none/at/all", "/link/deep"} {
			m, err := MountFlags(host + path)
			assert.NilError(t, err)
			assert.Equal(t, m.Source, "over", path)
			assert.Equal(t, m.FSType, "tmpfs")
			assert.Equal(t, m.Mountpoint, host+"/a")
			assert.Equal(t, fmt.Sprint(m.Flags()), "[nosuid nodev]")
			assert.Equal(t, strings.HasSuffix(m.Path, "/none"), false)
			assert.Assert(t, !m.ReadOnly && !m.IDMapped)
		}
		mount(t, "none", host+"/a", "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
		m, err := MountFlags(host + "/a")
		assert.NilError(t, err)
		assert.Assert(t, m.ReadOnly)
	})
}
