package crio

import (
	"fmt"

	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
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

// runcName is the name of the OCI runtime, whichever program it is.
const runcName = "runc"

// storage is how images become file systems, in containers/storage's words.
type storage struct {
	driver, mountProgram string
}

func storageFor(e component.Env) (storage, error) {
	switch e.Snapshotter {
	case storageOverlay:
		return storage{driver: "overlay"}, nil
	case storageFuseOverlayfs:
		if e.FuseOverlayfsPath == "" {
			return storage{}, fmt.Errorf("the program %s is not known", storageFuseOverlayfs)
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
		// On tmpfs: each start of the node is a boot to CRI-O, which then drops the containers that died with the last.
		VersionFile: layout.InsideCRIORun + "/version",
		// It survives: its absence at a start makes CRI-O look for half-written layers.
		CleanShutdownFile: layout.InsideCRIORoot + "/clean.shutdown",
		// The kubelet sends streams on to this address; it is the node's own loopback.
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
		// The default is systemd, which is not there. A conmon lies in its pod's cgroup, so that it outlives CRI-O.
		CgroupManager: "cgroupfs", ConmonCgroup: "pod",
		Conmon: e.CRIO.Conmon, PinnsPath: e.CRIO.Pinns,
		NamespacesDir:            layout.InsideCRIORun + "/ns",
		ContainerExitsDir:        layout.InsideCRIORun + "/exits",
		ContainerAttachSocketDir: layout.InsideCRIORun,
		// The host's hooks are not made for this; profiles cannot be loaded; criu and IRQs are root's.
		HooksDir: []string{}, ApparmorProfile: "unconfined", IRQBalanceConfigRestoreFile: "disable",
		// As containerd has it: processes of pods may listen on any port of their own.
		DefaultSysctls: []string{"net.ipv4.ip_unprivileged_port_start=0"},
		DefaultRuntime: runcName,
		Runtimes:       map[string]handler{runcName: {Type: "oci", Path: e.OCIRuntime, Root: layout.InsideCRIORun + "/runc"}},
	}
}

// graphRoot holds images and containers.
const graphRoot = layout.InsideCRIORoot + "/storage"

// The part of containers-storage.conf(5) that CRI-O takes from its own configuration, for skopeo and podman.
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

// logLevel: what CRI-O calls info it says of every request.
func logLevel(level string) string {
	switch level {
	case "info", "warning":
		return "warn"
	}
	return level
}
