package hostinfo

import (
	"testing"

	"github.com/moby/sys/mountinfo"
	"gotest.tools/v3/assert"
)

func TestMountOver(t *testing.T) {
	t.Parallel()
	mounts := []*mountinfo.Info{
		{ID: 1, Mountpoint: "/"}, {ID: 2, Mountpoint: "/var"}, {ID: 3, Mountpoint: "/var/lib"}, {ID: 4, Mountpoint: "/var/lib"},
	}
	for path, id := range map[string]int{"/": 1, "/variable": 1, "/var": 2, "/var/log": 2, "/var/library": 2, "/var/lib/x": 4} {
		assert.Equal(t, MountOver(mounts, path).ID, id, path)
	}
	assert.Assert(t, MountOver(mounts[1:], "/etc") == nil)
}
