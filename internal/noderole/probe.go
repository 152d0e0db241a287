package noderole

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/component/containerd"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// snapshotter chooses the snapshotter for container images: overlayfs if the kernel can mount it in a user namespace on
// the data dir's file system (Linux 5.11), otherwise fuse-overlayfs if its containerd plugin is installed, otherwise
// plain copies.
func (n *nodeRole) snapshotter(dir string) (string, error) {
	fuse, fuseErr := fuseOverlay()
	switch s := n.cfg.Containerd.Snapshotter; s {
	case "auto":
	case containerd.SnapshotterFuseOverlayfs:
		n.env.FuseOverlayfsPath = fuse
		return s, errdefs.Class(errdefs.ErrPreflight, fuseErr)
	default:
		return s, nil
	}
	err := probeOverlay(dir)
	if err == nil {
		return containerd.SnapshotterOverlay, nil
	}
	if fuseErr == nil {
		n.warn("cannot mount overlayfs (%v); using fuse-overlayfs", err)
		n.env.FuseOverlayfsPath = fuse
		return containerd.SnapshotterFuseOverlayfs, nil
	}
	n.warn("cannot mount overlayfs (%v); every container gets a full copy of its image", err)
	return containerd.SnapshotterNative, nil
}

// fuseOverlay returns the path of the proxy snapshotter, if it is installed and /dev/fuse is accessible.
func fuseOverlay() (string, error) {
	path, err := exec.LookPath(fuseOverlayProgram)
	if err == nil {
		err = unix.Access("/dev/fuse", unix.R_OK|unix.W_OK)
	}
	if err != nil {
		return "", fmt.Errorf("use the snapshotter fuse-overlayfs: %w", err)
	}
	return path, nil
}

// fuseOverlayProgram is containerd's proxy snapshotter for fuse-overlayfs.
const fuseOverlayProgram = "containerd-fuse-overlayfs-grpc"

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

// proxyMode chooses kube-proxy's mode by testing what each mode needs from the kernel.
func (n *nodeRole) proxyMode(ctx context.Context) (string, error) {
	if m := n.cfg.KubeProxy.Mode; m != "auto" {
		return m, nil
	}
	nft := exec.CommandContext(ctx, "nft", "-f", "-")
	nft.Stdin = strings.NewReader("add table ip rootlessnode-probe\ndelete table ip rootlessnode-probe\n")
	nftErr := runCommand(nft)
	if nftErr == nil {
		return "nftables", nil
	}
	iptErr := runCommand(exec.CommandContext(ctx, "iptables", "-w", "-t", "nat", "-S", "POSTROUTING"))
	if iptErr == nil {
		n.warn("cannot use nftables (%v); kube-proxy uses iptables", nftErr)
		return "iptables", nil
	}
	err := errors.Join(fmt.Errorf("nftables: %w", nftErr), fmt.Errorf("iptables: %w", iptErr))
	return "", errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("choose kube-proxy's mode: %w", err)),
		"apt-get install nftables  # or iptables\nmodprobe nf_tables  # or ip_tables and iptable_nat; see rootlessnode host setup")
}

// runCommand runs cmd and adds its output to the error.
func runCommand(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", cmd.Path, err, strings.TrimSpace(string(out)))
	}
	return nil
}
