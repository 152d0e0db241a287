// Package component describes the components of a node: the files and directories that they need, the program with its
// arguments, and a readiness check. Each component has a sub-package with the functions Render and Ready; this package
// contains what they share.
//
// Rendering is pure: it turns typed input into bytes and arguments, and neither starts processes nor reads the host.
// Only Write and MakeDirs, which put rendered files on disk, and the checks that Ready returns have side effects; each
// check makes one attempt. Package supervisor runs the components.
//
// Runs in: child side, inside the node's namespaces. All paths are paths inside, unless a name contains "host".
package component

import (
	"io/fs"
	"net"
	"path/filepath"
	"strconv"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Loopback is the address of components that only the node itself connects to.
const Loopback = "127.0.0.1"

// Env is the input of rendering. The node role collects it inside the namespaces.
type Env struct {
	// Config is the effective config. NodeName and Cluster.DNSAddress are set.
	Config *config.NodeConfig
	// HostName is the host's name, which users of the host may use to reach the API server. May be empty.
	HostName string
	// NodeIP is the address of TapInterface, for example 10.0.2.100.
	NodeIP string
	// NodeIPv6 is the IPv6 address of TapInterface, or empty without network.ipv6.
	NodeIPv6 string
	// APIServerURL is the URL of the API server for components, without a trailing slash. It is https://127.0.0.1:6443
	// for the embedded control plane.
	APIServerURL string
	// TapInterface and TapMTU (bytes) are the node's uplink.
	TapInterface string
	TapMTU       int
	// NameServers are the name servers of CoreDNS and of other pods with dnsPolicy Default.
	NameServers []string
	// BinDir returns the absolute path of a component's program ("kubelet", "runc"), or of the directory of CNI plugins
	// for "cni".
	BinDir func(name string) string
	Storage
	// KubeProxyMode is nftables or iptables, but not auto.
	KubeProxyMode string
	// OCIRuntime is the path of runc, or of rootlessnode's shim that runs runc.
	OCIRuntime string
	// OCIRuntimes are more OCI runtimes by the name of their RuntimeClass.
	OCIRuntimes map[string]OCIRuntime
	// ShimCgroup is the existing cgroup, as a path below /sys/fs/cgroup, to which containerd's shims move. Pods survive
	// the end of containerd only if their shims are not in containerd's cgroup, which is killed with it. Empty leaves
	// the shims in that cgroup.
	ShimCgroup string
	// PublicIP is the address at which other nodes reach this one, if it is not NodeIP. May be empty.
	PublicIP string
	// Credentials is the kubelet's plugin for the account's logins at registries, nil if it is not used.
	Credentials *CredentialPlugin
	// ClusterCA is the certificate of the cluster's authority as PEM data. It is set when the manifests are rendered.
	ClusterCA []byte
	// StatusSocket is the socket of the node role, which serves the node's status and metrics.
	StatusSocket string
	// CustomDNS is the user's part of the configuration of the cluster DNS, nil if there is none.
	CustomDNS map[string]string
	// Controllers are the cgroup controllers of the node. Unenforced are the missing ones, whose limits are dropped.
	Controllers, Unenforced []string
	// Ceiling is the limit of the whole node: the lower of the config's caps and the limits of parent cgroups. Machine
	// is the machine that the kubelet detects as its capacity; fields are zero if unknown.
	Ceiling layout.Limits
	Machine hostinfo.Machine
	// LocalStorageCapacityIsolation is false if the statistics of the data dir's file system cannot be read (FUSE, or
	// btrfs in a user namespace). The kubelet would not start otherwise.
	LocalStorageCapacityIsolation bool
	// SeccompDefault is the kubelet's seccompDefault.
	SeccompDefault bool
	// IDsPerPod is the kubelet's userNamespaces.idsPerPod, a multiple of 65536. 0 keeps the kubelet's default.
	IDsPerPod int64
}

// OCIRuntime is an OCI runtime of the host.
type OCIRuntime struct {
	// Path is the path of the program.
	Path string
	// Shim is the path of its own shim of containerd, and ShimType the name by which containerd knows that. Both are empty for a
	// program with runc's command line, which uses runc's shim.
	Shim, ShimType string
}

// CredentialPlugin is a program of this module that the kubelet runs with the role layout.RoleCredentials.
type CredentialPlugin struct {
	// Program is the path of the program, whose name the kubelet accepts as the name of a plugin.
	Program string
	// RuntimeDir is the node's runtime dir.
	RuntimeDir string
	// Ports are ports of registries.
	Ports []int
}

// Storage lists the facts about the host that rendering the container runtime needs.
type Storage struct {
	// Snapshotter is overlayfs, fuse-overlayfs or native, but not auto.
	Snapshotter string
	// FuseOverlayfsPath is the program of the fuse-overlayfs proxy snapshotter (containerd-fuse-overlayfs-grpc). It is
	// only used with that snapshotter.
	FuseOverlayfsPath string
	// CRIO are CRI-O's programs. They are only used with the runtime CRI-O, for which FuseOverlayfsPath is the
	// fuse-overlayfs program itself.
	CRIO CRIOPrograms
}

// CRIOPrograms are the absolute paths of CRI-O and of the programs that it runs.
type CRIOPrograms struct {
	Crio, Conmon string
	// Pinns pins namespaces of pods. If it is empty, CRI-O looks for it on PATH.
	Pinns string
}

// File is a file to write.
type File struct {
	Path string
	Mode fs.FileMode
	Data []byte
	// Durable files are synced to disk, so that they survive a crash of the host. This is slow and meant for files that
	// cannot be created again.
	Durable bool
}

// Dir is a directory that must exist with the given mode.
type Dir struct {
	Path string
	Mode fs.FileMode
}

// Rendered is a component that is ready to start.
type Rendered struct {
	// Name of the component: kubelet, kube-proxy, etcd, …
	Name string
	// Dirs and Files must exist before the component starts.
	Dirs  []Dir
	Files []File
	// Path is the path of the program. Args are its arguments without the program's name.
	Path string
	Args []string
	// Env are environment variables as KEY=VALUE, in addition to those of all components.
	Env []string
}

// RunFile returns the path of a file that is rendered at each start.
func RunFile(name string) string { return filepath.Join(layout.InsideRun, name) }

// LoopbackAddress returns "127.0.0.1:port".
func LoopbackAddress(port int) string { return net.JoinHostPort(Loopback, strconv.Itoa(port)) }

// Verbosity returns klog's -v for a log level of the config. Only the level debug increases it.
func Verbosity(level string) int {
	if level == "debug" {
		return debugVerbosity
	}
	return 0
}

// debugVerbosity is the highest klog level that does not log request bodies.
const debugVerbosity = 4

// Flag formats a long flag.
func Flag(name, value string) string { return "--" + name + "=" + value }

// IntFlag formats a long flag with an integer value.
func IntFlag(name string, value int) string { return Flag(name, strconv.Itoa(value)) }
