package copyup

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
)

func TestRemountFlags(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		statfs int64
		want   uintptr
	}{
		{"none", 0, 0},
		{"relatime as usual, with a valid bit that is not a flag", unix.ST_RELATIME | 0x20, unix.MS_RELATIME},
		{"locked three", unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC, unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"read-only, noatime", unix.ST_RDONLY | unix.ST_NOATIME, unix.MS_RDONLY | unix.MS_NOATIME},
		{"strict times but not for directories", unix.ST_NODIRATIME, unix.MS_NODIRATIME | unix.MS_STRICTATIME},
		{"relative times and not for directories", unix.ST_NODIRATIME | unix.ST_RELATIME, unix.MS_NODIRATIME | unix.MS_RELATIME},
		{"nosymfollow", stNoSymFollow, unix.MS_NOSYMFOLLOW},
	}
	for _, tc := range tests {
		assert.Equal(t, remountFlags(tc.statfs), tc.want, tc.name)
	}
}

// TestBindKeepingFlags sets the flags in one namespace and creates the bind in a child namespace, where they are locked.
func TestBindKeepingFlags(t *testing.T) {
	flagSets := []uintptr{
		unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, unix.MS_NOATIME, unix.MS_STRICTATIME,
		unix.MS_STRICTATIME | unix.MS_NODIRATIME, unix.MS_NOSUID | unix.MS_NODIRATIME, unix.MS_RDONLY | unix.MS_NODEV,
	}
	prepare := func(t *testing.T, host string, _ int) {
		makeTree(t, host, "target/", "plain/")
		for i := range flagSets {
			makeTree(t, host, name(i)+"/")
		}
	}
	inside(t, prepare, nil, func(t *testing.T, host string) {
		if level() == "2" {
			mount(t, "none", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
			for i := range flagSets {
				bindLocked(t, host+"/"+name(i), host+"/target", flagSets[i])
			}
			bindFaults(t, host)
			return
		}
		for i, flags := range flagSets {
			mount(t, "none", host+"/"+name(i), "tmpfs", flags&^unix.MS_RDONLY, "")
			makeTree(t, host, name(i)+"/sub/")
			mount(t, "none", host+"/"+name(i)+"/sub", "tmpfs", 0, "") // locked to its parent
			if flags&unix.MS_RDONLY != 0 {
				mount(t, "none", host+"/"+name(i), "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
			}
		}
		out, err := inNamespace(t, 0, 0, "2").CombinedOutput()
		assert.NilError(t, err, "%s", out)
	})
}

func name(i int) string { return "source" + string(rune('a'+i)) }

func bindLocked(t *testing.T, source, target string, flags uintptr) {
	t.Helper()
	want := statfsFlags(t, source)
	assert.NilError(t, BindKeepingFlags(source, target, unix.MS_RDONLY))
	assert.Equal(t, statfsFlags(t, target), want|unix.ST_RDONLY)
	_, err := os.Stat(target + "/sub")
	assert.NilError(t, err)
	assert.NilError(t, unix.Unmount(target, unix.MNT_DETACH))

	assert.NilError(t, BindKeepingFlags(source, target, 0))
	assert.Equal(t, statfsFlags(t, target), want)
	if flags&unix.MS_NODEV != 0 { // check that the flags are locked
		err := unix.Mount("none", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
		assert.Equal(t, err, unix.EPERM)
	}
	assert.NilError(t, unix.Unmount(target, unix.MNT_DETACH))
}

func bindFaults(t *testing.T, host string) {
	t.Helper()
	err := BindKeepingFlags(host+"/none", host+"/target", 0)
	assert.Assert(t, errors.Is(err, fs.ErrNotExist), "%v", err)
	before := read(t, "/proc/self/mountinfo")
	err = BindKeepingFlags(host+"/"+name(0), host+"/target", unix.MS_STRICTATIME)
	assert.ErrorContains(t, err, "set mount flags of "+host+"/target: operation not permitted")
	assert.Equal(t, read(t, "/proc/self/mountinfo"), before, "the bind was removed")
}

func statfsFlags(t *testing.T, name string) int64 {
	t.Helper()
	var st unix.Statfs_t
	assert.NilError(t, unix.Statfs(name, &st))
	return int64(st.Flags) //nolint:unconvert // its type is another one on other architectures
}

func TestMaskUnreadable(t *testing.T) {
	prepare := func(t *testing.T, host string, _ int) { makeTree(t, host, "secret 0000", "open", "null") }
	inside(t, prepare, nil, func(t *testing.T, host string) {
		assert.NilError(t, maskUnreadable(host+"/none", host+"/null"))
		assert.NilError(t, maskUnreadable(host+"/open", host+"/null"))
		assert.Equal(t, read(t, host+"/open"), "open\n")
		_, err := os.ReadFile(host + "/secret")
		for range 2 {
			assert.NilError(t, maskUnreadable(host+"/secret", host+"/null"))
		}
		if err != nil { // not if the user owns the file: then root's capability suffices to read it
			assert.Equal(t, read(t, host+"/secret"), "null\n")
		}
		assert.NilError(t, MaskKmsg())
		mounts := strings.Count(read(t, "/proc/self/mountinfo"), " /dev/kmsg ")
		assert.NilError(t, MaskKmsg())
		assert.Equal(t, strings.Count(read(t, "/proc/self/mountinfo"), " /dev/kmsg "), mounts)
	})
}

func TestPropagationOf(t *testing.T) {
	t.Parallel()
	for optional, want := range map[string][2]bool{
		"":                                {false, false},
		"shared:21":                       {true, false},
		"master:1":                        {false, true},
		"shared:21 master:1":              {true, true},
		"master:1 propagate_from:2":       {false, true},
		"unbindable":                      {false, false},
		"shared:1 something_to_come:yes ": {true, false},
	} {
		shared, slave := propagationOf(optional)
		assert.Equal(t, [2]bool{shared, slave}, want, optional)
	}
}

func FuzzParseMountID(f *testing.F) {
	f.Add("pos:\t0\nflags:\t012000000\nmnt_id:\t26\nino:\t2\n")
	f.Add("mnt_id:\n")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := parseMountID(text)
		if err != nil && id != 0 || err == nil && !strings.Contains(text, "mnt_id:") {
			t.Fatalf("%d, %v", id, err)
		}
	})
}
