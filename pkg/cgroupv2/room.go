package cgroupv2

import (
	"path/filepath"
	"strings"
)

// Room is how much the limits of one cgroup still allow. A nil field has no limit, or no controller.
type Room struct {
	// Dir is the directory of the cgroup.
	Dir string
	// Tasks is the number of further processes and threads, MemoryBytes that of further bytes. Memory that the kernel can reclaim, such
	// as cached files, does not count as used.
	Tasks, MemoryBytes *uint64
}

// Rooms returns the room of dir and of the cgroups above it, below mount. It reads cgroups of the host that the account cannot change.
//
// Runs in: parent.
func Rooms(mount, dir string) []Room {
	var rooms []Room
	for ; strings.HasPrefix(dir, mount+"/"); dir = filepath.Dir(dir) {
		memory := readNumber(dir, "memory.current")
		rooms = append(rooms, Room{
			Dir:         dir,
			Tasks:       left(readNumber(dir, "pids.max"), readNumber(dir, "pids.current")),
			MemoryBytes: left(readNumber(dir, "memory.max"), workingSet(dir, memory)),
		})
	}
	return rooms
}

// left returns limit minus used, at least 0, or nil if one of them is not known.
func left(limit, used *uint64) *uint64 {
	if limit == nil || used == nil {
		return nil
	}
	n := *limit - min(*used, *limit)
	return &n
}
