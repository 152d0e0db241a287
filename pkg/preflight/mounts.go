package preflight

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// mount is the mount that a path is on.
type mount struct {
	point, fsType, options string
}

// mountOf finds it in mountinfo by the longest mount point above path; the last of several on one point counts.
func (h *host) mountOf(path string) (mount, bool) {
	f, err := os.Open(h.path("/proc/self/mountinfo"))
	if err != nil {
		return mount{}, false
	}
	defer func() { _ = f.Close() }()
	infos, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return mount{}, false
	}
	var best mount
	for _, i := range infos {
		if isBelow(path, i.Mountpoint) && len(i.Mountpoint) >= len(best.point) {
			best = mount{i.Mountpoint, i.FSType, i.Options}
		}
	}
	return best, best.point != ""
}

func isBelow(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// existing is path, or the nearest directory above it that exists.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == "/" || path == "." {
			return path
		}
		path = filepath.Dir(path)
	}
}
