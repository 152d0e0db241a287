// Package containerd renders containerd for a node in a user namespace, in the configuration format of containerd 2.4
// (version 4).
//
// Runs in: child side. It only renders; Ready's check connects once to each of two sockets.
package containerd

import (
	"context"
	"fmt"

	"github.com/pelletier/go-toml/v2"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// Name of the component, and shimProgram that of the program between it and runc.
const (
	Name        = "containerd"
	shimProgram = "containerd-shim-runc-v2"
)

// Snapshotters.
const (
	SnapshotterOverlay       = "overlayfs"
	SnapshotterFuseOverlayfs = "fuse-overlayfs"
	SnapshotterNative        = "native"
)

// FuseOverlayfs is the name of the component that serves the fuse-overlayfs snapshotter, and FuseOverlayfsSock is its
// socket.
const (
	FuseOverlayfs     = "fuse-overlayfs-snapshotter"
	FuseOverlayfsSock = layout.InsideContainerdRun + "/fuse-overlayfs.sock"
)

const (
	// ttrpcSock is the socket to which shims send their events.
	ttrpcSock = layout.InsideContainerdSock + ".ttrpc"
	nriSock   = layout.InsideContainerdRun + "/nri.sock"
	// socketDirMax is the maximum length of the directory of shim sockets, in characters, because socket names are
	// long.
	socketDirMax = 42
)

// Component returns containerd's entry in the catalogue.
func Component() component.Component {
	return component.Component{
		Name: Name, Enabled: enabled, Programs: []string{Name, shimProgram}, KeepsChildren: true,
		Image: func(c *config.NodeConfig) string { return c.Containerd.PauseImage },
		Needs: func(e component.Env) []supervisor.Need {
			if !usesFuse(e) {
				return nil
			}
			return component.NeedReady(FuseOverlayfs)
		},
		Render: Render, Ready: Ready,
	}
}

// FuseComponent returns the entry of the fuse-overlayfs snapshotter in the catalogue.
func FuseComponent() component.Component {
	return component.Component{
		Name: FuseOverlayfs, Enabled: enabled, When: usesFuse, Render: RenderFuseOverlayfs, Ready: ReadyFuseOverlayfs,
	}
}

func enabled(c *config.NodeConfig) bool { return c.CRI.Runtime == config.RuntimeContainerd }

func usesFuse(e component.Env) bool { return e.Snapshotter == SnapshotterFuseOverlayfs }

// Render returns containerd's configuration and arguments.
func Render(e component.Env) (component.Rendered, error) {
	switch {
	case e.Snapshotter != SnapshotterOverlay && e.Snapshotter != SnapshotterFuseOverlayfs && e.Snapshotter != SnapshotterNative:
		return component.Rendered{}, fmt.Errorf("render %s: unknown snapshotter %q", Name, e.Snapshotter)
	case len(layout.InsideShimSockets) > socketDirMax:
		return component.Rendered{}, fmt.Errorf("render %s: %s is longer than %d characters", Name, layout.InsideShimSockets, socketDirMax)
	}
	data, err := toml.Marshal(configFor(e))
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: encode TOML: %w", Name, err)
	}
	hosts, err := hostsFiles(e.Config)
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	file := component.RunFile("containerd.toml")
	return component.Rendered{
		Name: Name,
		Dirs: []component.Dir{
			{Path: layout.InsideContainerdRoot, Mode: 0o711},
			{Path: layout.InsideContainerdRun, Mode: 0o711},
			{Path: layout.InsideShimSockets, Mode: 0o711},
			{Path: layout.InsideCNIConf, Mode: 0o755},
		},
		Files: append([]component.File{{Path: file, Mode: 0o600, Data: data}}, hosts...),
		Path:  e.BinDir(Name),
		Args:  []string{"--config", file},
	}, nil
}

// RenderFuseOverlayfs returns the component that containerd needs for the fuse-overlayfs snapshotter. It must be ready
// before containerd starts.
func RenderFuseOverlayfs(e component.Env) (component.Rendered, error) {
	if e.FuseOverlayfsPath == "" {
		return component.Rendered{}, fmt.Errorf("render %s: the path of the program is not set", FuseOverlayfs)
	}
	root := layout.InsideContainerdRoot + "/io.containerd.snapshotter.v1." + SnapshotterFuseOverlayfs
	return component.Rendered{
		Name: FuseOverlayfs,
		Dirs: []component.Dir{{Path: root, Mode: 0o700}, {Path: layout.InsideContainerdRun, Mode: 0o711}},
		Path: e.FuseOverlayfsPath,
		Args: []string{FuseOverlayfsSock, root},
	}, nil
}

// Ready returns a check that connects to the CRI and event sockets. containerd opens them when all plugins are loaded.
func Ready(component.Env) func(context.Context) error {
	return component.All(component.Probe{Unix: layout.InsideContainerdSock}.Check, component.Probe{Unix: ttrpcSock}.Check)
}

// ReadyFuseOverlayfs returns a check that connects to the snapshotter's socket.
func ReadyFuseOverlayfs(component.Env) func(context.Context) error {
	return component.Probe{Unix: FuseOverlayfsSock}.Check
}
