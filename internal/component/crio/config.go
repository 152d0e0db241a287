package crio

import (
	"fmt"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

type configuration struct {
	CRIO table `toml:"crio"`
}

type table struct {
	Root              string   `toml:"root"`
	RunRoot           string   `toml:"runroot"`
	StorageDriver     string   `toml:"storage_driver"`
	StorageOption     []string `toml:"storage_option"`
	LogDir            string   `toml:"log_dir"`
	VersionFile       string   `toml:"version_file"`
	CleanShutdownFile string   `toml:"clean_shutdown_file"`
	API               api      `toml:"api"`
	Runtime           runtime  `toml:"runtime"`
	Image             image    `toml:"image"`
	Network           network  `toml:"network"`
	NRI               nri      `toml:"nri"`
}

type api struct {
	Listen        string `toml:"listen"`
	StreamAddress string `toml:"stream_address"`
	StreamPort    string `toml:"stream_port"`
}

type runtime struct {
	LogLevel                    string             `toml:"log_level"`
	CgroupManager               string             `toml:"cgroup_manager"`
	ConmonCgroup                string             `toml:"conmon_cgroup"`
	Conmon                      string             `toml:"conmon"`
	PinnsPath                   string             `toml:"pinns_path,omitempty"`
	NamespacesDir               string             `toml:"namespaces_dir"`
	ContainerExitsDir           string             `toml:"container_exits_dir"`
	ContainerAttachSocketDir    string             `toml:"container_attach_socket_dir"`
	HooksDir                    []string           `toml:"hooks_dir"`
	SELinux                     bool               `toml:"selinux"`
	ApparmorProfile             string             `toml:"apparmor_profile"`
	EnableCRIUSupport           bool               `toml:"enable_criu_support"`
	IRQBalanceConfigRestoreFile string             `toml:"irqbalance_config_restore_file"`
	DefaultSysctls              []string           `toml:"default_sysctls"`
	DefaultRuntime              string             `toml:"default_runtime"`
	Runtimes                    map[string]handler `toml:"runtimes"`
}

type handler struct {
	Type string `toml:"runtime_type"`
	Path string `toml:"runtime_path"`
	Root string `toml:"runtime_root"`
}

type image struct {
	PauseImage         string   `toml:"pause_image"`
	PinnedImages       []string `toml:"pinned_images"`
	SignaturePolicy    string   `toml:"signature_policy"`
	SignaturePolicyDir string   `toml:"signature_policy_dir"`
}

type network struct {
	NetworkDir string   `toml:"network_dir"`
	PluginDirs []string `toml:"plugin_dirs"`
}

type nri struct {
	Enable bool   `toml:"enable_nri"`
	Listen string `toml:"nri_listen"`
}

// runcName is the name of the OCI runtime, also if the program is a shim.
const runcName = "runc"

// storage is the storage configuration of containers/storage.
type storage struct {
	driver, mountProgram string
}

func storageFor(e component.Env) (storage, error) {
	switch e.Snapshotter {
	case storageOverlay:
		return storage{driver: "overlay"}, nil
	case storageFuseOverlayfs:
		if e.FuseOverlayfsPath == "" {
			return storage{}, fmt.Errorf("the path of the program %s is not set", storageFuseOverlayfs)
		}
		return storage{driver: "overlay", mountProgram: e.FuseOverlayfsPath}, nil
	case storageNative:
		return storage{driver: "vfs"}, nil
	}
	return storage{}, fmt.Errorf("unknown storage %q", e.Snapshotter)
}

func configFor(e component.Env, s storage) configuration {
	options := []string{}
	if s.mountProgram != "" {
		options = append(options, "overlay.mount_program="+s.mountProgram)
	}
	policy := policyFile
	if p := e.Config.CRIO.SignaturePolicy; p != "" {
		policy = p
	}
	return configuration{CRIO: table{
		Root: graphRoot, RunRoot: layout.InsideStorageRun, StorageDriver: s.driver, StorageOption: options,
		LogDir: layout.InsidePodLogs,
		// On tmpfs, so that CRI-O treats each start of the node as a boot and removes the containers of the last run.
		VersionFile: layout.InsideCRIORun + "/version",
		// On disk, because CRI-O checks for incomplete layers if the file is missing at a start.
		CleanShutdownFile: layout.InsideCRIORoot + "/clean.shutdown",
		// The kubelet connects to this address for streams; it is the node's loopback.
		API:     api{Listen: layout.InsideCRIOSock, StreamAddress: component.Loopback, StreamPort: "0"},
		Runtime: runtimeFor(e),
		Image: image{
			PauseImage: e.Config.CRIO.PauseImage, PinnedImages: []string{e.Config.CRIO.PauseImage},
			SignaturePolicy: policy, SignaturePolicyDir: layout.InsideCRIORun + "/policies",
		},
		Network: network{NetworkDir: layout.InsideCNIConf, PluginDirs: []string{e.BinDir("cni")}},
		NRI:     nri{Enable: e.Config.CRIO.NRI, Listen: layout.InsideCRIORun + "/nri.sock"},
	}}
}

func runtimeFor(e component.Env) runtime {
	return runtime{
		LogLevel: logLevel(e.Config.LogLevel),
		// The default systemd is not available. conmon is in its pod's cgroup, so that it survives the end of CRI-O.
		CgroupManager: "cgroupfs", ConmonCgroup: "pod",
		Conmon: e.CRIO.Conmon, PinnsPath: e.CRIO.Pinns,
		NamespacesDir:            layout.InsideCRIORun + "/ns",
		ContainerExitsDir:        layout.InsideCRIORun + "/exits",
		ContainerAttachSocketDir: layout.InsideCRIORun,
		// Hooks of the host are not meant for this node; AppArmor profiles, CRIU and IRQ settings need root.
		HooksDir: []string{}, ApparmorProfile: "unconfined", IRQBalanceConfigRestoreFile: "disable",
		// As with containerd, processes of pods may listen on any port.
		DefaultSysctls: []string{"net.ipv4.ip_unprivileged_port_start=0"},
		DefaultRuntime: runcName,
		Runtimes:       map[string]handler{runcName: {Type: "oci", Path: e.OCIRuntime, Root: layout.InsideCRIORun + "/runc"}},
	}
}

// graphRoot contains images and containers.
const graphRoot = layout.InsideCRIORoot + "/storage"

// The part of containers-storage.conf(5) that skopeo and podman need; CRI-O has the same values in its own
// configuration.
type storageConfiguration struct {
	Storage storageTable `toml:"storage"`
}

type storageTable struct {
	Driver    string         `toml:"driver"`
	GraphRoot string         `toml:"graphroot"`
	RunRoot   string         `toml:"runroot"`
	Options   storageOptions `toml:"options"`
}

type storageOptions struct {
	Overlay overlayOptions `toml:"overlay"`
}

type overlayOptions struct {
	MountProgram string `toml:"mount_program,omitempty"`
}

func storageConfigFor(s storage) storageConfiguration {
	return storageConfiguration{Storage: storageTable{
		Driver: s.driver, GraphRoot: graphRoot, RunRoot: layout.InsideStorageRun,
		Options: storageOptions{Overlay: overlayOptions{MountProgram: s.mountProgram}},
	}}
}

// logLevel returns CRI-O's log level. Its level info has messages for each request.
func logLevel(level string) string {
	switch level {
	case "info", "warning":
		return "warn"
	}
	return level
}
