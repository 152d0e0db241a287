package mountview

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"
)

// hostMounts returns the mounts of the host on which testdata/inside.txt was recorded.
func hostMounts(t *testing.T, more string) []*mountinfo.Info {
	t.Helper()
	b, err := os.ReadFile("testdata/host.txt")
	assert.NilError(t, err)
	mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(string(b)+more), nil)
	assert.NilError(t, err)
	return mounts
}

func TestView(t *testing.T) {
	t.Parallel()
	text := golden.Get(t, "inside.txt")
	v, err := Parse(text, hostMounts(t, ""))
	assert.NilError(t, err)
	var b strings.Builder
	total := 0
	for _, g := range v.Groups {
		fmt.Fprintf(&b, "%-4s %3d  %s  %s\n", g.Kind, g.Mounts, g.Pod, g.What)
		total += g.Mounts
	}
	golden.Assert(t, b.String(), "groups.txt")
	assert.Equal(t, total, len(v.Mounts))
	assert.Equal(t, v.HostSees, 0)
	host := 0
	for _, m := range v.Mounts {
		if m.Kind == KindHost {
			host++
		}
	}
	assert.Equal(t, v.Own, len(v.Mounts)-host)
}

func TestNodeMount(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ mountpoint, root, want string }{
		{"/opt", "/home/u/.local/share/rootlessnode/nodes/default/inside/opt", "data"},
		{"/opt/.ro1", "/opt", "copy-up"},
		{"/run/.ro42/user", "/", "cover"},
		{"/run/.ro42/user/1000/rootlessnode/default", "/rootlessnode/default", "cover"},
		{"/var/lib/kubelet", "/data/kubelet", "data"},
		{"/run", "/", "tmpfs"},
	} {
		assert.Equal(t, nodeMount(&mountinfo.Info{Mountpoint: tc.mountpoint, Root: tc.root, FSType: "tmpfs"}), tc.want, tc.mountpoint)
	}
}

// TestHostSees checks that a mount of a pod that leaked to the host is counted.
func TestHostSees(t *testing.T) {
	t.Parallel()
	const leaked = "1 2 0:47 / " + tasksDir + "/5555555555555555555555555555555555555555555555555555555555555555/rootfs rw - overlay overlay rw\n"
	v, err := Parse(golden.Get(t, "inside.txt"), hostMounts(t, leaked))
	assert.NilError(t, err)
	assert.Equal(t, v.HostSees, 1)
}

func TestBrokenLists(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte("1 2 0:47 / / rw - x x rw\n"), nil)
	assert.Check(t, is.ErrorContains(err, "incomplete list"))
	_, err = Parse([]byte("nonsense\n\n"), nil)
	assert.Check(t, is.ErrorContains(err, "read the node's mounts"))
	_, err = Parse([]byte("1 2 0:47 / / rw - x x rw\n\nabc {\n"), nil)
	assert.Check(t, is.ErrorContains(err, "configuration of container abc"))
}

func FuzzParse(f *testing.F) {
	f.Add("85 77 0:45 / /var/lib/kubelet/pods/u/volumes/p/n rw shared:43 - tmpfs tmpfs rw\n\nid {\"annotations\":{\"a\":\"b\"}}\n")
	f.Add("86 70 0:4 net:[1] /run/netns/x rw - nsfs nsfs rw\n66 42 0:41 / /etc/.ro1 rw - tmpfs none rw\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := Parse([]byte(text), nil)
		if err == nil && v.Own > len(v.Mounts) {
			t.Fatal("more own mounts than mounts")
		}
	})
}
