package noderole

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/containerd"
	"github.com/rootlessnode/rootlessnode/internal/component/crio"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// unitExternal waits for a container runtime that rootlessnode does not run.
const unitExternal = "external-runtime"

// runtimeUnit returns the unit that must be ready before the kubelet starts.
func (n *nodeRole) runtimeUnit() string {
	switch n.cfg.CRI.Runtime {
	case config.RuntimeCRIO:
		return crio.Name
	case config.RuntimeExternal:
		return unitExternal
	}
	return containerd.Name
}

// runtimePrograms returns the components that run containers.
func (n *nodeRole) runtimePrograms() []program {
	switch n.cfg.CRI.Runtime {
	case config.RuntimeCRIO:
		return []program{{crio.Render, crio.Ready, nil, keepShims}}
	case config.RuntimeExternal:
		return nil
	}
	if n.env.Snapshotter != containerd.SnapshotterFuseOverlayfs {
		return []program{{containerd.Render, containerd.Ready, nil, keepShims}}
	}
	return []program{
		{containerd.RenderFuseOverlayfs, containerd.ReadyFuseOverlayfs, nil, nil},
		{containerd.Render, containerd.Ready, needs(containerd.FuseOverlayfs), keepShims},
	}
}

// keepShims keeps the runtime's shims (or conmons), the parents of containers, running when the runtime restarts.
func keepShims(u *supervisor.Unit) { u.KeepChildren = true }

// runtimeTasks returns the units that depend on the runtime: the import of images, or the wait for an external runtime.
func (n *nodeRole) runtimeTasks(oneShot func(string, func(context.Context) error, ...string) supervisor.Unit) []supervisor.Unit {
	if n.cfg.CRI.Runtime != config.RuntimeExternal {
		images := oneShot(unitImages, n.importImages, n.runtimeUnit())
		images.Essential, images.GiveUpAfter = false, 0
		return []supervisor.Unit{images}
	}
	// No time limit, because the user starts the runtime. `up` shows that it is waiting.
	return []supervisor.Unit{{Name: unitExternal, Backoff: n.backoff(), Task: func(ctx context.Context, ready func()) error {
		if err := supervisor.Poll(readyPoll, "the runtime at "+n.cfg.CRI.Endpoint,
			component.Probe{Unix: n.cfg.RuntimeSocket()}.Check)(ctx); err != nil {
			return err
		}
		ready()
		<-ctx.Done()
		return nil
	}}}
}

// runtimeCgroup returns the cgroup in which the runtime puts containers whose pod has no cgroup parent.
func (n *nodeRole) runtimeCgroup() string {
	if n.cfg.CRI.Runtime == config.RuntimeCRIO {
		return crio.DefaultCgroup
	}
	return "/" + containerdNamespace
}

// runtimeEnv returns the environment in which ctr and crictl find the runtime.
func (n *nodeRole) runtimeEnv() []string {
	endpoint := n.cfg.RuntimeEndpoint()
	env := []string{"CONTAINER_RUNTIME_ENDPOINT=" + endpoint, "IMAGE_SERVICE_ENDPOINT=" + endpoint}
	if n.cfg.CRI.Runtime == config.RuntimeContainerd {
		env = append(env, "CONTAINERD_ADDRESS="+layout.InsideContainerdSock, "CONTAINERD_NAMESPACE="+containerdNamespace)
	}
	return env
}

// detectRuntime sets the fields of the environment that rendering the runtime needs.
func (n *nodeRole) detectRuntime() (err error) {
	switch n.cfg.CRI.Runtime {
	case config.RuntimeExternal:
		return nil
	case config.RuntimeCRIO:
		var errs []error
		find := func(name string) string {
			path, err := n.find(name)
			errs = append(errs, err)
			return path
		}
		n.env.CRIO = component.CRIOPrograms{Crio: find(crio.Name), Conmon: n.cfg.CRIO.Conmon}
		if n.env.CRIO.Conmon == "" {
			n.env.CRIO.Conmon = find("conmon")
		}
		n.env.CRIO.Pinns, _ = n.find("pinns") // CRI-O may find it elsewhere
		n.env.Snapshotter, err = n.crioStorage(layout.InsideCRIORoot)
		return errdefs.Class(errdefs.ErrPreflight, errors.Join(append(errs, err)...))
	}
	n.env.Snapshotter, err = n.snapshotter(layout.InsideContainerdRoot)
	return err
}

// find looks for a program that is not built with the components: first in the components dir, then on PATH.
func (n *nodeRole) find(name string) (string, error) {
	if path, err := exec.LookPath(n.binary(name)); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find CRI-O program %s: %w", name, err)
	}
	return filepath.Abs(path)
}

// crioStorage chooses CRI-O's storage driver, as a value of component.Env.Snapshotter.
func (n *nodeRole) crioStorage(dir string) (string, error) {
	if n.cfg.CRIO.StorageDriver == "vfs" {
		return containerd.SnapshotterNative, nil
	}
	err := probeOverlay(dir)
	if err == nil {
		return containerd.SnapshotterOverlay, nil
	}
	fuse, fuseErr := n.find("fuse-overlayfs")
	if fuseErr == nil {
		fuseErr = unix.Access("/dev/fuse", unix.R_OK|unix.W_OK)
	}
	switch {
	case fuseErr == nil:
		n.warn("cannot mount overlayfs (%v); using fuse-overlayfs", err)
		n.env.FuseOverlayfsPath = fuse
		return containerd.SnapshotterFuseOverlayfs, nil
	case n.cfg.CRIO.StorageDriver == "overlay":
		return "", errdefs.WithHint(fmt.Errorf("use crio.storageDriver overlay: %w", errors.Join(err, fuseErr)),
			"apt-get install fuse-overlayfs    # or set crio.storageDriver: auto")
	}
	n.warn("cannot mount overlayfs (%v); every container gets a full copy of its image", err)
	return containerd.SnapshotterNative, nil
}

// loader imports an image from an archive.
type loader func(ctx context.Context, name, archive string) error

// imageStore returns the names of the images in the runtime, and a function that imports images; nil if images cannot
// be imported.
func (n *nodeRole) imageStore(ctx context.Context) (have []string, load loader, err error) {
	if n.cfg.CRI.Runtime == config.RuntimeCRIO {
		return n.crioImages(ctx)
	}
	out, err := n.ctr(ctx, "images", "ls", "-q")
	return strings.Fields(out), func(ctx context.Context, _, archive string) error {
		_, err := n.ctr(ctx, "images", "import", archive)
		return err
	}, err
}

// crioImages is imageStore for CRI-O. CRI cannot import archives, so skopeo writes them to CRI-O's storage. Without
// skopeo, images are pulled from their registries on first use.
func (n *nodeRole) crioImages(ctx context.Context) (have []string, load loader, err error) {
	skopeo, err := n.find("skopeo")
	if err != nil {
		n.warn("the bundled images are pulled from their registries: CRI-O cannot import archives, and skopeo is not installed")
		return nil, nil, nil
	}
	crictl, err := n.find("crictl")
	if err != nil {
		return nil, nil, err
	}
	out, err := n.runtimeClient(ctx, crictl, "images", "-o", "json")
	if err != nil {
		return nil, nil, err
	}
	if have, err = criImages([]byte(out)); err != nil {
		return nil, nil, err
	}
	return have, func(ctx context.Context, name, archive string) error {
		_, err := n.runtimeClient(ctx, skopeo, "copy", "oci-archive:"+archive, "containers-storage:"+name)
		return err
	}, nil
}

// criImages returns the image names in the output of `crictl images -o json`.
func criImages(b []byte) ([]string, error) {
	var list struct {
		Images []struct {
			RepoTags []string `json:"repoTags"`
		} `json:"images"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("parse the output of crictl: %w", err)
	}
	var names []string
	for _, i := range list.Images {
		names = append(names, i.RepoTags...)
	}
	return names, nil
}

// runtimeClient runs a client of the runtime or of its image storage, and returns its output.
func (n *nodeRole) runtimeClient(ctx context.Context, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = n.environ(n.runtimeEnv())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(append([]string{filepath.Base(path)}, args...), " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
