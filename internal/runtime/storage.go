package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/containerd"
)

// fuseDevice is the device that fuse-overlayfs needs.
const fuseDevice = "/dev/fuse"

// withoutOverlay returns the storage of images if the kernel cannot mount overlayfs because of err: fuse-overlayfs
// unless it is missing (fuseErr).
func withoutOverlay(err error, fuse string, fuseErr error) (component.Storage, []string) {
	if fuseErr == nil {
		return component.Storage{Snapshotter: containerd.SnapshotterFuseOverlayfs, FuseOverlayfsPath: fuse},
			[]string{fmt.Sprintf("cannot mount overlayfs (%v); using fuse-overlayfs", err)}
	}
	return component.Storage{Snapshotter: containerd.SnapshotterNative},
		[]string{fmt.Sprintf("cannot mount overlayfs (%v); every container gets a full copy of its image", err)}
}

func probeOverlay(dir string) (err error) {
	base, err := os.MkdirTemp(dir, ".probe-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(base)) }()
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(base, d), 0o700); err != nil {
			return err
		}
	}
	// userxattr: in a user namespace overlayfs stores its metadata in user.* attributes (overlayfs.rst, "User xattr").
	opts := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work,userxattr", base)
	merged := filepath.Join(base, "merged")
	if err := unix.Mount("overlay", merged, "overlay", 0, opts); err != nil {
		return fmt.Errorf("mount overlayfs: %w", err)
	}
	return unix.Unmount(merged, unix.MNT_DETACH)
}
