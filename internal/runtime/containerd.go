package runtime

import (
	"fmt"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/containerd"
	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// containerdNamespace is the containerd namespace of the kubelet's containers, and the default name of their cgroup.
const containerdNamespace = "k8s.io"

type containerdRuntime struct{ cfg *config.NodeConfig }

func (containerdRuntime) Unit() string          { return containerd.Name }
func (containerdRuntime) Endpoint() string      { return unixScheme + layout.InsideContainerdSock }
func (containerdRuntime) Cgroup() string        { return "/" + containerdNamespace }
func (r containerdRuntime) PauseImage() string  { return r.cfg.Containerd.PauseImage }
func (containerdRuntime) RunsBundled() bool     { return true }
func (containerdRuntime) WithoutImport() string { return "" }
func (containerdRuntime) ManualImport() string  { return "" }
func (containerdRuntime) HasImageStore() bool   { return true }

func (containerdRuntime) ImportCommand(string, string) []string { return nil }

func (r containerdRuntime) HostNeeds() HostNeeds {
	files := map[string]string{"containerd.registryConfigDir": r.cfg.Containerd.RegistryConfigDir}
	for name, path := range r.cfg.Containerd.Runtimes {
		files["containerd.runtimes."+name] = path
	}
	for name, registry := range r.cfg.Registries {
		at := "registries." + name
		files[at+".caFile"], files[at+".certFile"], files[at+".keyFile"] = registry.CAFile, registry.CertFile, registry.KeyFile
	}
	return HostNeeds{Text: " is one of the components", Files: files}
}

func (containerdRuntime) Env(s component.Storage) []string {
	return []string{
		"CONTAINERD_ADDRESS=" + layout.InsideContainerdSock,
		criclient.EnvNamespace + "=" + containerdNamespace, criclient.EnvSnapshotter + "=" + s.Snapshotter,
	}
}

// Detect chooses the snapshotter for container images: overlayfs if the kernel can mount it in a user namespace on the
// data dir's file system (Linux 5.11), otherwise fuse-overlayfs if its containerd plugin is installed, otherwise plain
// copies.
func (r containerdRuntime) Detect() (component.Storage, []string, error) {
	fuse, fuseErr := fuseSnapshotter()
	switch want := r.cfg.Containerd.Snapshotter; want {
	case string(config.Auto):
	case containerd.SnapshotterFuseOverlayfs:
		return component.Storage{Snapshotter: want, FuseOverlayfsPath: fuse}, nil, errdefs.Class(errdefs.ErrPreflight, fuseErr)
	default:
		return component.Storage{Snapshotter: want}, nil, nil
	}
	err := probeOverlay(layout.InsideContainerdRoot)
	if err == nil {
		return component.Storage{Snapshotter: containerd.SnapshotterOverlay}, nil, nil
	}
	storage, warnings := withoutOverlay(err, fuse, fuseErr)
	return storage, warnings, nil
}

// fuseSnapshotter returns the path of containerd's proxy snapshotter for fuse-overlayfs, if it is installed and
// /dev/fuse is accessible.
func fuseSnapshotter() (string, error) {
	path, err := exec.LookPath("containerd-fuse-overlayfs-grpc")
	if err == nil {
		err = unix.Access(fuseDevice, unix.R_OK|unix.W_OK)
	}
	if err != nil {
		return "", fmt.Errorf("use the snapshotter fuse-overlayfs: %w", err)
	}
	return path, nil
}
