// Package component says what a component of the node is: files to write, directories to make, a program with its
// arguments, and a way to ask whether it answers. Each component has a sub-package with two functions, Render and
// Ready; this package holds what they share.
//
// Rendering is pure: typed input in, bytes and arguments out. Nothing here starts a process or reads the host. The only
// functions that touch anything are Write and MakeDirs, which put what was rendered on disk, and the checks that Ready
// returns, each of which makes one attempt. Supervision is not done here.
//
// Runs in: child side, inside the node's namespaces. All paths are paths inside, unless a name says host.
package component

import (
	"io/fs"
	"net"
	"path/filepath"
	"strconv"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Loopback is where components listen that nobody outside the node asks.
const Loopback = "127.0.0.1"

// Env is all that rendering needs to know. The node role gathers it inside the namespaces.
type Env struct {
	// Config is the effective config, complete: NodeName and Cluster.DNSAddress are set.
	Config *config.NodeConfig
	// HostName is the host's name, under which users of the host may reach the API server. May be empty.
	HostName string
	// NodeIP is the address of TapInterface, for example 10.0.2.100.
	NodeIP string
	// NodeIPv6 is its IPv6 address; empty without network.ipv6.
	NodeIPv6 string
	// APIServerURL is how components reach the API server, without a slash at the end: https://127.0.0.1:6443 inside
	// for the embedded one.
	APIServerURL string
	// TapInterface and TapMTU (bytes) are the node's uplink.
	TapInterface string
	TapMTU       int
	// NameServers are what pods with dnsPolicy Default, CoreDNS among them, ask.
	NameServers []string
	// BinDir returns the absolute path of a component's program ("kubelet", "runc"), or of the directory of CNI plugins
	// for "cni".
	BinDir func(name string) string
	// Snapshotter is overlayfs, fuse-overlayfs or native: never auto.
	Snapshotter string
	// FuseOverlayfsPath is the program of the fuse-overlayfs proxy snapshotter (containerd-fuse-overlayfs-grpc). Needed
	// with that snapshotter only.
	FuseOverlayfsPath string
	// CRIO are CRI-O's programs. Needed with that runtime only, and FuseOverlayfsPath is then fuse-overlayfs itself.
	CRIO CRIOPrograms
	// KubeProxyMode is nftables or iptables: never auto.
	KubeProxyMode string
	// OCIRuntime is the path of runc, or of the shim of ours in front of it.
	OCIRuntime string
	// ShimCgroup is the cgroup, as a path below /sys/fs/cgroup, that containerd's shims move to. Pods outlive containerd
	// only if their shims are not in the cgroup that is killed with it. It must exist. Empty leaves them there.
	ShimCgroup string
	// PublicIP is the address by which other nodes reach this one, where it is not NodeIP. May be empty.
	PublicIP string
	// Controllers are the cgroup controllers that the node has; Unenforced are those that it lacks, whose limits are
	// dropped.
	Controllers, Unenforced []string
	// Ceiling is what the node as a whole may use: the config's caps, and what lies above the node. Machine is what the
	// kubelet takes for its capacity; zero where it is not known.
	Ceiling layout.Limits
	Machine hostinfo.Machine
	// LocalStorageCapacityIsolation is false where the statistics of the data dir's file system cannot be read (FUSE,
	// btrfs in a user namespace): the kubelet would not start.
	LocalStorageCapacityIsolation bool
	// SeccompDefault is the kubelet's seccompDefault.
	SeccompDefault bool
	// IDsPerPod is the kubelet's userNamespaces.idsPerPod, a multiple of 65536; 0 leaves the kubelet's default.
	IDsPerPod int64
}

// CRIOPrograms are the absolute paths of CRI-O and of what it runs.
type CRIOPrograms struct {
	Crio, Conmon string
	// Pinns keeps namespaces of pods. Empty: CRI-O finds it on PATH.
	Pinns string
}

// File is a file to be written.
type File struct {
	Path string
	Mode fs.FileMode
	Data []byte
	// Durable files survive a crash of the host right after they were written. That takes time, and is for what cannot
	// be made again.
	Durable bool
}

// Dir is a directory that must exist, with the mode that it must have.
type Dir struct {
	Path string
	Mode fs.FileMode
}

// Rendered is a component ready to be started.
type Rendered struct {
	// Name of the component: kubelet, kube-proxy, etcd…
	Name string
	// Dirs and Files must be there before it starts.
	Dirs  []Dir
	Files []File
	// Path of the program and its Args, without the program's name.
	Path string
	Args []string
	// Env holds variables as KEY=VALUE, in addition to those that every component gets.
	Env []string
}

// RunFile is the path of a file that is rendered anew on each start.
func RunFile(name string) string { return filepath.Join(layout.InsideRun, name) }

// LoopbackAddress is "127.0.0.1:port".
func LoopbackAddress(port int) string { return net.JoinHostPort(Loopback, strconv.Itoa(port)) }

// Verbosity is klog's -v for a level of the config: only debug asks the Kubernetes programs for more than their
// ordinary messages.
func Verbosity(level string) int {
	if level == "debug" {
		return debugVerbosity
	}
	return 0
}

// debugVerbosity is the highest klog level that does not print the bodies of requests.
const debugVerbosity = 4

// Flag writes a long flag.
func Flag(name, value string) string { return "--" + name + "=" + value }

// IntFlag writes a long flag with a number.
func IntFlag(name string, value int) string { return Flag(name, strconv.Itoa(value)) }
