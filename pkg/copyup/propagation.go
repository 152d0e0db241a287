package copyup

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// EnsureShared makes root and every mount below it shared, so that a mount of one component or pod propagates to the others
// (volumes with Bidirectional propagation). The mounts still receive mounts from the host: they become "shared,slave", or
// only "shared" on a host whose root is private. Nothing propagates to the host, because a mount namespace of another user
// namespace is never its peer (mount_namespaces(7)).
//
// Call it after RootlessKit has finished, that is, in the node role, because copy-up and RootlessKit's move of
// /sys/fs/cgroup are impossible on shared mounts. root must be a mount point, and normally is /.
//
// Runs in: child.
func EnsureShared(root string) error {
	if err := unix.Mount("none", root, "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make the mounts below %s shared: %w", root, err)
	}
	shared, _, err := Propagation(root)
	if err == nil && !shared {
		err = fmt.Errorf("make the mounts below %s shared: the kernel left them private", root)
	}
	return err
}

// Propagation reports whether the mount of path is shared (propagates mounts to its peers) and whether it is a slave
// (receives mounts, as the node from the host). If it is neither, it is private.
//
// Runs in: parent, child or either. It reads the caller's mount namespace.
func Propagation(path string) (shared, slave bool, err error) {
	m, err := mountOf(path)
	if err != nil {
		return false, false, err
	}
	shared, slave = propagationOf(m.Optional)
	return shared, slave, nil
}

// propagationOf parses the optional fields of a line of mountinfo (proc_pid_mountinfo(5)).
func propagationOf(optional string) (shared, slave bool) {
	for field := range strings.FieldsSeq(optional) {
		tag, _, _ := strings.Cut(field, ":")
		shared = shared || tag == "shared"
		slave = slave || tag == "master"
	}
	return shared, slave
}

// mountOf returns the mount of path, with links followed. It compares mount IDs and not mount points, because a mount that is
// covered by another one is still in mountinfo with its mount point.
func mountOf(path string) (*mountinfo.Info, error) {
	f, err := openPath(unix.AT_FDCWD, path, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
	if err != nil {
		return nil, err
	}
	id, err := parseMountID(string(info))
	if err != nil {
		return nil, fmt.Errorf("find the mount of %s: %w", path, err)
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.ID != id, m.ID == id })
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	if len(mounts) == 0 {
		return nil, fmt.Errorf("find the mount of %s: mount %d is not in mountinfo", path, id)
	}
	return mounts[0], nil
}

// parseMountID returns the mount ID in the content of /proc/PID/fdinfo/FD (proc_pid_fdinfo(5)).
func parseMountID(fdinfo string) (int, error) {
	for line := range strings.Lines(fdinfo) {
		if value, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return 0, errors.New("fdinfo has no mnt_id")
}
