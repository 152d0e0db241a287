package containerd

import (
	"path/filepath"
	"runtime"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// configVersion is the version of containerd 2.4. Older versions are migrated at each start, with a warning.
const configVersion = 4

type configuration struct {
	Version         int                    `toml:"version"`
	Root            string                 `toml:"root"`
	State           string                 `toml:"state"`
	DisabledPlugins []string               `toml:"disabled_plugins"`
	RequiredPlugins []string               `toml:"required_plugins"`
	Debug           debug                  `toml:"debug"`
	ProxyPlugins    map[string]proxyPlugin `toml:"proxy_plugins,omitempty"`
	Plugins         plugins                `toml:"plugins"`
}

type debug struct {
	Level string `toml:"level"`
}

type proxyPlugin struct {
	Type    string `toml:"type"`
	Address string `toml:"address"`
}

type plugins struct {
	Runtime  cri      `toml:"io.containerd.cri.v1.runtime"`
	Images   images   `toml:"io.containerd.cri.v1.images"`
	Transfer transfer `toml:"io.containerd.transfer.v1.local"`
	NRI      nri      `toml:"io.containerd.nri.v1.nri"`
	Shims    shims    `toml:"io.containerd.shim.v1.manager"`
	GRPC     server   `toml:"io.containerd.server.v1.grpc"`
	TTRPC    server   `toml:"io.containerd.server.v1.ttrpc"`
}

type cri struct {
	DisableAppArmor                  bool     `toml:"disable_apparmor"`
	RestrictOOMScoreAdj              bool     `toml:"restrict_oom_score_adj"`
	TolerateMissingHugetlbController bool     `toml:"tolerate_missing_hugetlb_controller"`
	DisableHugetlbController         bool     `toml:"disable_hugetlb_controller"`
	NetNSMountsUnderStateDir         bool     `toml:"netns_mounts_under_state_dir"`
	CNI                              cni      `toml:"cni"`
	Containerd                       runtimes `toml:"containerd"`
}

type cni struct {
	BinDirs []string `toml:"bin_dirs"`
	ConfDir string   `toml:"conf_dir"`
	// The loopback plugin would cost two more processes for each pod.
	InternalLoopback bool `toml:"use_internal_loopback"`
}

type runtimes struct {
	Default  string                `toml:"default_runtime_name"`
	Runtimes map[string]ociRuntime `toml:"runtimes"`
}

type ociRuntime struct {
	Type    string       `toml:"runtime_type"`
	Path    string       `toml:"runtime_path"`
	Options *runcOptions `toml:"options,omitempty"`
}

type runcOptions struct {
	BinaryName    string
	SystemdCgroup bool
	// NoNewKeyring: the kernel limits the keys of an account (200 by default), and runc would create one for each container.
	NoNewKeyring bool
	ShimCgroup   string `toml:",omitempty"`
}

type images struct {
	Snapshotter  string            `toml:"snapshotter"`
	PinnedImages map[string]string `toml:"pinned_images"`
	Registry     registry          `toml:"registry"`
}

type registry struct {
	ConfigPath string `toml:"config_path"`
}

type transfer struct {
	ConfigPath   string   `toml:"config_path"`
	UnpackConfig []unpack `toml:"unpack_config"`
}

type unpack struct {
	Platform    string `toml:"platform"`
	Snapshotter string `toml:"snapshotter"`
	Differ      string `toml:"differ"`
}

type nri struct {
	Disable    bool   `toml:"disable"`
	SocketPath string `toml:"socket_path"`
}

type shims struct {
	SocketDir string `toml:"socket_dir"`
}

type server struct {
	Address string `toml:"address"`
}

// shimType is the shim of programs with runc's command line.
const shimType = "io.containerd.runc.v2"

func configFor(e component.Env) configuration {
	c := configuration{
		Version: configVersion,
		Root:    layout.InsideContainerdRoot,
		State:   layout.InsideContainerdRun,
		// Plugins that cannot work in a user namespace or are not used. containerd would probe each of them and log the
		// failure.
		DisabledPlugins: []string{
			"io.containerd.snapshotter.v1.blockfile",
			"io.containerd.snapshotter.v1.btrfs",
			"io.containerd.snapshotter.v1.devmapper",
			"io.containerd.snapshotter.v1.erofs",
			"io.containerd.snapshotter.v1.zfs",
			"io.containerd.differ.v1.erofs",
			"io.containerd.mount-handler.v1.erofs",
			"io.containerd.monitor.container.v1.restart",
			"io.containerd.internal.v1.opt",
			"io.containerd.internal.v1.tracing",
			"io.containerd.tracing.processor.v1.otlp",
			"io.containerd.ttrpc.v1.otelttrpc",
			"io.containerd.metrics.v1.grpc-otel",
			"io.containerd.image-verifier.v1.bindir",
		},
		// Required plugins make containerd fail at start and not at the first pod.
		RequiredPlugins: []string{"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"},
		Debug:           debug{Level: logLevel(e.Config.LogLevel)},
		Plugins: plugins{
			Runtime:  criFor(e),
			Images:   imagesFor(e),
			Transfer: transferFor(e),
			NRI:      nri{Disable: !e.Config.Containerd.NRI, SocketPath: nriSock},
			Shims:    shims{SocketDir: layout.InsideShimSockets},
			GRPC:     server{Address: layout.InsideContainerdSock},
			TTRPC:    server{Address: ttrpcSock},
		},
	}
	if e.Snapshotter == SnapshotterFuseOverlayfs {
		c.ProxyPlugins = map[string]proxyPlugin{SnapshotterFuseOverlayfs: {Type: "snapshot", Address: FuseOverlayfsSock}}
	}
	return c
}

func criFor(e component.Env) cri {
	return cri{
		// A user namespace cannot load AppArmor profiles or lower OOM scores, and hugetlb is not delegated.
		DisableAppArmor: true, RestrictOOMScoreAdj: true,
		TolerateMissingHugetlbController: true, DisableHugetlbController: true,
		// The alternative is /run/netns, which may be a link to the host's directory.
		NetNSMountsUnderStateDir: true,
		CNI:                      cni{BinDirs: []string{e.BinDir("cni")}, ConfDir: layout.InsideCNIConf, InternalLoopback: true},
		Containerd: runtimes{
			Default: config.DefaultOCIRuntime, Runtimes: ociRuntimes(e),
		},
	}
}

// ociRuntimes returns the runtimes of pods without a RuntimeClass and of each RuntimeClass.
func ociRuntimes(e component.Env) map[string]ociRuntime {
	like := func(program string) ociRuntime {
		return ociRuntime{
			Type: shimType, Path: e.BinDir(shimProgram),
			Options: &runcOptions{BinaryName: program, SystemdCgroup: false, NoNewKeyring: true, ShimCgroup: e.ShimCgroup},
		}
	}
	out := map[string]ociRuntime{config.DefaultOCIRuntime: like(e.OCIRuntime)}
	for name, r := range e.OCIRuntimes {
		if r.Shim != "" {
			out[name] = ociRuntime{Type: r.ShimType, Path: r.Shim}
		} else {
			out[name] = like(filepath.Join(layout.InsideOCIShims, name))
		}
	}
	return out
}

func imagesFor(e component.Env) images {
	return images{
		Snapshotter:  e.Snapshotter,
		PinnedImages: map[string]string{"sandbox": e.Config.Containerd.PauseImage},
		Registry:     registry{ConfigPath: registryConfigDir(e.Config)},
	}
}

// transferFor returns the settings of the transfer service, which pulls images for CRI and must know the snapshotter to
// unpack them for.
func transferFor(e component.Env) transfer {
	return transfer{
		ConfigPath:   registryConfigDir(e.Config),
		UnpackConfig: []unpack{{Platform: "linux/" + runtime.GOARCH, Snapshotter: e.Snapshotter, Differ: "walking"}},
	}
}

// logLevel returns containerd's log level. Its level info has messages for each container.
func logLevel(level string) string {
	switch level {
	case "info", "warning":
		return "warn"
	}
	return level
}
