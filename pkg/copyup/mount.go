package copyup

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// flagPairs returns the flags of a mount as statfs(2) reports them and as mount(2) takes them. Flags that the host set are
// locked in a user namespace, including those for times: a remount without one of them fails with EPERM
// (mount_namespaces(7), "Restrictions on mount namespaces").
func flagPairs() [][2]uintptr {
	return [][2]uintptr{
		{unix.ST_RDONLY, unix.MS_RDONLY},
		{unix.ST_NOSUID, unix.MS_NOSUID},
		{unix.ST_NODEV, unix.MS_NODEV},
		{unix.ST_NOEXEC, unix.MS_NOEXEC},
		{stNoSymFollow, unix.MS_NOSYMFOLLOW},
		{unix.ST_NOATIME, unix.MS_NOATIME},
		{unix.ST_NODIRATIME, unix.MS_NODIRATIME},
		{unix.ST_RELATIME, unix.MS_RELATIME},
	}
}

// stNoSymFollow is ST_NOSYMFOLLOW of linux/statfs.h.
const stNoSymFollow = 0x2000

// remountFlags converts the flags that statfs reports to the flags that a remount has to repeat.
func remountFlags(statfs int64) uintptr {
	var flags uintptr
	for _, pair := range flagPairs() {
		if uintptr(statfs)&pair[0] != 0 {
			flags |= pair[1]
		}
	}
	// With only nodiratime, the kernel would change strict access times to relative ones.
	if flags&(unix.MS_NOATIME|unix.MS_RELATIME) == 0 && flags&unix.MS_NODIRATIME != 0 {
		flags |= unix.MS_STRICTATIME
	}
	return flags
}

// BindKeepingFlags binds source, with all mounts below it, over target. extra are MS_… flags to add to the new mount, such
// as MS_RDONLY. The flags of source's mount are kept, so that the remount is allowed. If extra is 0, there is no remount. If
// the remount fails, target is unmounted again.
//
// Runs in: child.
func BindKeepingFlags(source, target string, extra uintptr) error {
	// Recursive, because the host's mounts below source are locked to it: the kernel refuses a bind without them.
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s over %s: %w", source, target, err)
	}
	if extra == 0 {
		return nil
	}
	err := remount(source, target, extra)
	if err != nil {
		err = errors.Join(fmt.Errorf("set mount flags of %s: %w", target, err), unix.Unmount(target, unix.MNT_DETACH))
	}
	return err
}

func remount(source, target string, extra uintptr) error {
	var st unix.Statfs_t
	if err := unix.Statfs(source, &st); err != nil {
		return err
	}
	flags := remountFlags(int64(st.Flags)) | extra //nolint:unconvert // its type is another one on other architectures
	return unix.Mount("none", target, "", unix.MS_BIND|unix.MS_REMOUNT|flags, "")
}

// MaskKmsg binds /dev/null over /dev/kmsg if this process may not read it, as with kernel.dmesg_restrict=1, because the
// kubelet accepts an empty kernel log but exits if it cannot open it. It does nothing if there is no /dev/kmsg. It is
// idempotent.
//
// Runs in: child.
func MaskKmsg() error { return maskUnreadable("/dev/kmsg", "/dev/null") }

func maskUnreadable(node, null string) error {
	fd, err := unix.Open(node, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		return unix.Close(fd)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return BindKeepingFlags(null, node, 0)
	}
	return fmt.Errorf("open %s: %w", node, err)
}
