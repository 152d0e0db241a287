package hostinfo

import (
	"strings"

	"github.com/moby/sys/mountinfo"
)

// MountOver returns the mount that a path without symbolic links is on: the last mount on the longest matching mount point. It
// returns nil if there is none.
func MountOver(mounts []*mountinfo.Info, path string) *mountinfo.Info {
	var best *mountinfo.Info
	for _, m := range mounts {
		if below(path, m.Mountpoint) && (best == nil || len(m.Mountpoint) >= len(best.Mountpoint)) {
			best = m
		}
	}
	return best
}

func below(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
