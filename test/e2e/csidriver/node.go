package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Keys of a volume's context. The kubelet sets the first two; the last is an attribute of the volume.
const (
	keyEphemeral = "csi.storage.k8s.io/ephemeral"
	keyPod       = "csi.storage.k8s.io/pod.name"
	keyOverlay   = "overlay"
)

// welcome is a file that every new volume contains.
const welcome = "welcome"

const volumeMode = 0o777 // for any user of the pod

// nodeService implements the node service. An inline volume is a tmpfs at its target path or, with the attribute overlay, an overlay
// whose layers are in a tmpfs. A persistent volume is a directory of the driver, bind-mounted to the staging path and from there to
// the target paths.
type nodeService struct {
	csi.UnimplementedNodeServer
	node, dataDir string
}

func (n *nodeService) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.node}, nil
}

func (n *nodeService) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{
		Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{
			Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		}},
	}}}, nil
}

func (n *nodeService) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if err := checked(req.VolumeId, req.StagingTargetPath, req.VolumeCapability); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, once(req.StagingTargetPath, func() error {
		dir := filepath.Join(n.dataDir, req.VolumeId)
		if err := fill(dir, "volume "+req.VolumeId); err != nil {
			return err
		}
		return bind(dir, req.StagingTargetPath, false)
	})
}

func (n *nodeService) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, unmount(req.StagingTargetPath)
}

func (n *nodeService) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := checked(req.VolumeId, req.TargetPath, req.VolumeCapability); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, once(req.TargetPath, func() error {
		switch {
		case req.VolumeContext[keyEphemeral] != "true":
			return bind(req.StagingTargetPath, req.TargetPath, req.Readonly)
		case req.VolumeContext[keyOverlay] == "true":
			return overlay(n.layers(req.VolumeId), req.TargetPath, "pod "+req.VolumeContext[keyPod])
		}
		if err := memory(req.TargetPath); err != nil {
			return err
		}
		return fill(req.TargetPath, "pod "+req.VolumeContext[keyPod])
	})
}

func (n *nodeService) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := unmount(req.TargetPath); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, unmount(n.layers(req.VolumeId))
}

// layers returns the directory for the layers of the volume's overlay.
func (n *nodeService) layers(id string) string { return filepath.Join(n.dataDir, id+".layers") }

// checked returns an error for invalid arguments. A volume's id must be valid as the name of a directory.
func checked(id, path string, as *csi.VolumeCapability) error {
	if id == "" || strings.Contains(id, "/") || !filepath.IsAbs(path) || as.GetMount() == nil {
		return status.Errorf(codes.InvalidArgument, "volume %q at %q as %v", id, path, as)
	}
	return nil
}

// once calls mount for a new directory. It succeeds if something is mounted there already, because the kubelet repeats its requests
// after a restart. After an error nothing is mounted.
func once(path string, mount func() error) error {
	if err := os.MkdirAll(path, 0o750); err != nil {
		return internal(err)
	}
	mounted, err := mountinfo.Mounted(path)
	if err != nil || mounted {
		return internal(err)
	}
	if err := mount(); err != nil {
		_ = unmount(path) // the first error says more
		return internal(err)
	}
	return nil
}

func internal(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.Internal, err.Error())
}

func memory(dir string) error {
	if err := unix.Mount("csi", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=0777"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	return nil
}

func bind(from, to string, readOnly bool) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", from, to, err)
	}
	if !readOnly {
		return nil
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", to, err)
	}
	return nil
}

// overlay mounts an overlay on to, with its layers in a tmpfs at layers. After an error, NodeUnpublishVolume removes the layers.
func overlay(layers, to, text string) error {
	err := once(layers, func() error {
		if err := memory(layers); err != nil {
			return err
		}
		for _, name := range []string{"upper", "work"} {
			if err := os.Mkdir(filepath.Join(layers, name), volumeMode); err != nil {
				return err
			}
		}
		if err := os.Chmod(filepath.Join(layers, "upper"), volumeMode); err != nil { // past the umask
			return err
		}
		return fill(filepath.Join(layers, "lower"), text)
	})
	if err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", layers)
	if err := unix.Mount("csi", to, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount an overlay on %s: %w", to, err)
	}
	return nil
}

// fill creates a directory that all users may write, and the file welcome in it unless it exists.
func fill(dir, text string) error {
	if err := os.MkdirAll(dir, volumeMode); err != nil {
		return err
	}
	if err := os.Chmod(dir, volumeMode); err != nil { // past the umask
		return err
	}
	file := filepath.Join(dir, welcome)
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	return os.WriteFile(file, []byte(text+"\n"), 0o644)
}

// unmount removes the mount at path, and the directory. It succeeds if they do not exist, because the kubelet repeats its requests.
func unmount(path string) error {
	if !filepath.IsAbs(path) {
		return status.Errorf(codes.InvalidArgument, "path %q", path)
	}
	if _, err := os.Lstat(path); os.IsNotExist(err) {
		return nil
	}
	mounted, err := mountinfo.Mounted(path)
	if err != nil {
		return internal(err)
	}
	if mounted {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return internal(fmt.Errorf("unmount %s: %w", path, err))
		}
	}
	return internal(os.Remove(path))
}
