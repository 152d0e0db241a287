package cgroupv2

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const (
	mountUnified = "31 22 0:27 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
	mountHybrid  = "30 22 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n" +
		"31 30 0:28 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n" +
		"34 30 0:31 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n" +
		"39 30 0:36 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n"
	mountHybridV2 = "40 30 0:37 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	selfHybrid    = "9:name=systemd:/\n8:pids:/\n7:blkio:/\n4:memory:/x:y\n2:cpu,cpuacct:/\n0::/user.slice\n"
)

func TestDetectHost(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, mounts, self string
		want               Host
		err                string
	}{
		{name: "unified", mounts: mountUnified, self: "0::/user.slice/user-1000.slice/session-1.scope\n",
			want: Host{Mount: "/sys/fs/cgroup", Self: "/user.slice/user-1000.slice/session-1.scope"}},
		{name: "hybrid", mounts: mountHybrid + mountHybridV2, self: selfHybrid,
			want: Host{Mount: "/sys/fs/cgroup/unified", Hybrid: true, V1: []string{"blkio", "cpu", "cpuacct", "memory", "pids"}, Self: "/user.slice"}},
		{name: "a second mount elsewhere", self: "0::/a\n",
			mounts: strings.ReplaceAll(mountUnified, "/sys/fs/cgroup", "/mnt") + mountUnified,
			want:   Host{Mount: "/sys/fs/cgroup", Self: "/a"}},
		{name: "container without a cgroup namespace", self: "0::/docker/0a1/inner\n",
			mounts: "31 22 0:27 /docker/0a1 /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
			want:   Host{Mount: "/sys/fs/cgroup", ReadOnly: true, Self: "/inner"}},
		{name: "at the root of what a container shows", self: "0::/docker/0a1\n",
			mounts: "31 22 0:27 /docker/0a1 /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
			want:   Host{Mount: "/sys/fs/cgroup", Self: "/"}},
		{name: "escaped characters", self: "0::/a b\n",
			mounts: `31 22 0:27 / /mnt/my\040cgroups rw - cgroup2 cgroup rw` + "\n",
			want:   Host{Mount: "/mnt/my cgroups", Self: "/a b"}},
		{name: "removed cgroup", mounts: mountUnified, self: "0::/gone (deleted)\n",
			want: Host{Mount: "/sys/fs/cgroup", Self: "/gone"}},
		{name: "v1 only", mounts: mountHybrid, self: selfHybrid,
			err: "no cgroup v2 tree on this host: only cgroup v1 is mounted, at /sys/fs/cgroup/cpu, /sys/fs/cgroup/memory, /sys/fs/cgroup/systemd"},
		{name: "nothing", mounts: "30 22 0:27 / /sys rw - sysfs sysfs rw\n", self: selfHybrid,
			err: "no cgroup v2 tree on this host: no cgroup file system is mounted"},
		{name: "outside of the namespace", mounts: mountUnified, self: "0::/../../x\n",
			err: "own cgroup /../../x is not visible in the cgroup2 tree at /sys/fs/cgroup (which shows /)"},
		{name: "no line for v2", mounts: mountUnified, self: "3:cpu:/\n", err: "no line for cgroup v2 (0::PATH)"},
		{name: "nonsense", mounts: mountUnified, self: "hello\n", err: `line "hello" is not ID:CONTROLLERS:PATH`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			o := Options{MountInfo: filepath.Join(dir, "mountinfo"), ProcSelfCgroup: filepath.Join(dir, "cgroup")}
			assert.NilError(t, os.WriteFile(o.MountInfo, []byte(tc.mounts), 0o644))
			assert.NilError(t, os.WriteFile(o.ProcSelfCgroup, []byte(tc.self), 0o644))
			h, err := DetectHost(o)
			if tc.err != "" {
				assert.ErrorContains(t, err, tc.err)
				return
			}
			assert.NilError(t, err)
			assert.DeepEqual(t, h, tc.want)
		})
	}
}

func TestNoTreeIsAPreflightError(t *testing.T) {
	t.Parallel()
	err := noTree(nil)
	assert.Assert(t, errors.Is(err, errdefs.ErrPreflight))
	assert.Assert(t, strings.Contains(errdefs.ReportOf(err).Hints[0], "systemd.unified_cgroup_hierarchy=1"))
}

func FuzzParseSelf(f *testing.F) {
	f.Add(selfHybrid)
	f.Add("0::/\n")
	f.Add("0::/a (deleted)\n")
	f.Fuzz(func(t *testing.T, text string) {
		self, held, err := parseSelf(text)
		if err != nil {
			return
		}
		assert.Assert(t, strings.HasPrefix(self, "/"))
		for _, c := range held {
			assert.Assert(t, c != "" && !strings.ContainsAny(c, ","))
		}
	})
}

func FuzzParseMounts(f *testing.F) {
	f.Add(mountUnified)
	f.Add(mountHybrid + mountHybridV2)
	f.Fuzz(func(t *testing.T, text string) {
		v2, v1, err := parseMounts(strings.NewReader(text))
		if err == nil {
			assert.Assert(t, len(v2)+len(v1) <= strings.Count(text, "\n")+1)
		}
	})
}
