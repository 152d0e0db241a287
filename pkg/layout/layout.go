// Package layout names every directory, file, socket and environment key that rootlessnode makes. docs/layout.md says
// the same for users.
//
// It is pure: it computes names and touches nothing. Runs in: parent, child or either; each name says on which side it
// is valid ("host" paths are valid inside too, through the links that copy-up leaves, unless said otherwise).
package layout

import (
	"path/filepath"
	"strings"
)

// Environment keys. Those with a leading underscore are private between the roles of one `up`.
const (
	// EnvName names the node like --name.
	EnvName = "ROOTLESSNODE_NAME"
	// EnvJoinToken is the bootstrap token for `up --join`. The command line takes it out of its environment before it starts
	// anything.
	EnvJoinToken = "ROOTLESSNODE_JOIN_TOKEN"
	// EnvTakenToken is the same on its way from `up --foreground` to the program with another network driver, which takes
	// its place.
	EnvTakenToken = "_ROOTLESSNODE_JOIN_TOKEN"
	// EnvRelay is the process of `host enter` that relays root's terminal. Its presence makes an execution the one that enters.
	EnvRelay = "_ROOTLESSNODE_RELAY"
	// EnvRole decides the role of an execution before anything else happens: one of the Role constants.
	EnvRole = "_ROOTLESSNODE_ROLE"
	// EnvPipeFD is RootlessKit's pipe to the child. Its presence makes an execution the child role.
	EnvPipeFD = "_ROOTLESSNODE_PIPE_FD"
	// EnvStateDir is RootlessKit's state dir.
	EnvStateDir = "_ROOTLESSNODE_STATE_DIR"
	// EnvChildActivation and EnvActivationHelper are RootlessKit's keys for socket activation.
	EnvChildActivation  = "_ROOTLESSNODE_CHILD_USE_ACTIVATION"
	EnvActivationHelper = "_ROOTLESSNODE_RUN_ACTIVATION_HELPER"
	// EnvConfig is the path of the effective config, for the child and node roles.
	EnvConfig = "_ROOTLESSNODE_CONFIG"
	// EnvLifeline is the descriptor whose end of file tells the parent to stop. Unset: nobody holds one.
	EnvLifeline = "_ROOTLESSNODE_LIFELINE_FD"
	// EnvReport is the descriptor on which the parent reports how it ended, as one JSON errdefs.Report.
	EnvReport = "_ROOTLESSNODE_REPORT_FD"
	// EnvConfigFD is the descriptor from which a starting parent reads its config.
	EnvConfigFD = "_ROOTLESSNODE_CONFIG_FD"
	// EnvGuard is the runtime dir that the guard cleans up.
	EnvGuard = "_ROOTLESSNODE_GUARD"
	// EnvRemove is the runtime dir of a removal: Runtime.Removal in it names the data dir that is to be removed from inside a
	// user namespace.
	EnvRemove = "_ROOTLESSNODE_REMOVE"
)

// Roles that EnvRole can name. The child's role is told by EnvPipeFD.
const (
	RoleParent       = "parent"
	RoleNode         = "node"
	RoleGuard        = "guard"
	RoleRemove       = "remove"
	RoleRemoveInside = "remove-inside"
	RoleMounts       = "mounts"
)

// Runtime names the host files of one run, below XDG_RUNTIME_DIR. All are gone after the node has stopped.
type Runtime struct{ Dir string }

// NewRuntime returns the runtime files of the node name for an account whose XDG_RUNTIME_DIR is xdgRuntimeDir.
func NewRuntime(xdgRuntimeDir, name string) Runtime {
	return Runtime{Dir: filepath.Join(xdgRuntimeDir, "rootlessnode", name)}
}

// Lock is held with flock by the parent for as long as it lives. See parent.Holder.
func (r Runtime) Lock() string { return r.Dir + ".lock" }

// Config is the effective config of the run, mode 0600.
func (r Runtime) Config() string { return filepath.Join(r.Dir, "config.json") }

// StateDir is RootlessKit's own; RootlessKit empties and removes it.
func (r Runtime) StateDir() string { return filepath.Join(r.Dir, "rk") }

// APISocket is RootlessKit's API, served by the parent.
func (r Runtime) APISocket() string { return filepath.Join(r.StateDir(), "api.sock") }

// SourcesSocket takes the source ranges of forwarded ports. The port driver builtin in the parent listens on it.
func (r Runtime) SourcesSocket() string { return filepath.Join(r.StateDir(), "sources.sock") }

// NodeSocket serves status, events and control over HTTP. The node role listens on it.
func (r Runtime) NodeSocket() string { return filepath.Join(r.Dir, "node.sock") }

// ExecSocket starts programs inside. The node role listens on it.
func (r Runtime) ExecSocket() string { return filepath.Join(r.Dir, "exec.sock") }

// HostSocket hands connections to chosen ports of the host's loopback in. The parent listens on it.
func (r Runtime) HostSocket() string { return filepath.Join(r.Dir, "host.sock") }

// HostAddresses are the addresses of the host, as HostAddress records. The parent replaces it when they change.
func (r Runtime) HostAddresses() string { return filepath.Join(r.Dir, "host-addresses.json") }

// NodeAddress is the address by which other nodes reach this one, a JSON string. The parent replaces it when it changes. It is
// there only in a cluster with other nodes.
func (r Runtime) NodeAddress() string { return filepath.Join(r.Dir, "node-address.json") }

// PortFaults are the open ports that take no connections at present, as PortFault records. The parent replaces it when they
// change. It is there from the first of them on.
func (r Runtime) PortFaults() string { return filepath.Join(r.Dir, "port-faults.json") }

// CgroupFile holds the path of the node's cgroup subtree on the host.
func (r Runtime) CgroupFile() string { return filepath.Join(r.Dir, "cgroup") }

// Uplink is what the child learned of its network by itself, a NetworkInfo, with a driver that uses DHCP. Else it is not
// there.
func (r Runtime) Uplink() string { return filepath.Join(r.Dir, "uplink.json") }

// Removal is the request to remove a data dir from inside a user namespace, a datadir.Request.
func (r Runtime) Removal() string { return filepath.Join(r.Dir, "removal.json") }

// Removed is the result of that removal, a datadir.Result.
func (r Runtime) Removed() string { return filepath.Join(r.Dir, "removed.json") }

// LongestSocket is the longest socket path that a run makes, for the check against the kernel's limit of 107 bytes.
func (r Runtime) LongestSocket() string {
	return filepath.Join(r.StateDir(), "gvisortapvsock", "tap.sock")
}

// Data names the host files that survive a stop.
type Data struct{ Dir string }

// NewData returns the data files below dir.
func NewData(dir string) Data { return Data{Dir: dir} }

// DefaultDataDir is where a node keeps its data when its config does not say.
func DefaultDataDir(xdgDataHome, name string) string {
	return filepath.Join(xdgDataHome, "rootlessnode", "nodes", name)
}

// UserComponentsDir is the third place in which components are looked for.
func UserComponentsDir(xdgDataHome string) string {
	return filepath.Join(xdgDataHome, "rootlessnode", "bin")
}

// RegistryDir holds the registry of the account's nodes: for each node whose data dir is known, one file.
func RegistryDir(xdgDataHome string) string {
	return filepath.Join(xdgDataHome, "rootlessnode", "registry")
}

// RegistryEntry records where the node name keeps its data. It is written at each start and removed with the data.
func RegistryEntry(xdgDataHome, name string) string {
	return filepath.Join(RegistryDir(xdgDataHome), name+".json")
}

// Record marks a directory as the data dir of one node: a datadir.Record. It is written before anything else of the node.
func (d Data) Record() string { return d.sub("rootlessnode.json") }

// LogDir holds one log file a component.
func (d Data) LogDir() string { return filepath.Join(d.Dir, "log") }

// Log is the log file of one component; "node" is the parent's, the child's and the node role's.
func (d Data) Log(component string) string { return filepath.Join(d.LogDir(), component+".log") }

// AdminKubeconfig is the administrator's kubeconfig for the host, mode 0600.
func (d Data) AdminKubeconfig() string { return filepath.Join(d.Dir, "kubeconfig") }

// LastExit is the errdefs.Report of the last run that ended by a fault.
func (d Data) LastExit() string { return filepath.Join(d.Dir, "last-exit.json") }

// Verified caches which component files were already hashed.
func (d Data) Verified() string { return filepath.Join(d.Dir, "verified.json") }

// Ports is the record of which forwards are ours.
func (d Data) Ports() string { return filepath.Join(d.Dir, "ports.json") }

// ManualPorts are the forwards that were made by hand.
func (d Data) ManualPorts() string { return filepath.Join(d.Dir, "manual-ports.json") }

// ImportedImages records which image archives the container store holds already.
func (d Data) ImportedImages() string { return filepath.Join(d.Dir, "images.json") }

// JoinRecord is what a worker knows of the cluster that it joined, mode 0600. It is there once the cluster was found.
func (d Data) JoinRecord() string { return filepath.Join(d.Dir, "kubernetes", "join.json") }

// ClusterCA is the certificate of the cluster's authority, made here or learned when joining.
func (d Data) ClusterCA() string { return filepath.Join(d.PKI(), "ca.crt") }

// BootstrapKubeconfig may ask for the node's certificate, mode 0600. It is gone once the node has one.
func (d Data) BootstrapKubeconfig() string {
	return filepath.Join(d.Dir, "kubernetes", "bootstrap.kubeconfig")
}

// KubeletPKI holds the certificates that a worker's kubelet got from the cluster and renews: links NAME-current.pem to files
// with certificate and key. The links hold paths inside, so on the host only their targets' names mean something.
func (d Data) KubeletPKI() string { return filepath.Join(d.Dir, "kubelet", "pki") }

// Inside holds what was made inside below copied-up directories: Inside/opt is the base of /opt, and so on. It is made by the
// child, one directory for each of mounts.copyUp but /run.
func (d Data) Inside() string { return d.sub("inside") }

// PKI holds keys and certificates. It is bound over InsidePKI.
func (d Data) PKI() string { return filepath.Join(d.Dir, "kubernetes", "pki") }

// Binds pairs the persistent directories with the places where components expect them, in the order of mounting.
func (d Data) Binds() []Bind {
	return []Bind{
		{d.sub("kubernetes"), InsideKubernetes, 0o755},
		{d.sub("etcd"), InsideEtcd, 0o700},
		{d.sub("containerd"), InsideContainerdRoot, 0o711},
		{d.sub("containers"), InsideCRIORoot, 0o711},
		{d.sub("kubelet"), InsideKubelet, 0o755},
		{d.sub("cni"), InsideCNIState, 0o755},
		{d.sub("cni-net.d"), InsideCNIConf, 0o755},
		{d.sub("pod-logs"), InsidePodLogs, 0o755},
		{d.sub("container-logs"), InsideContainerLogs, 0o755},
	}
}

// Entries are the names of everything that a node keeps directly below its data dir, the record last. A test compares them
// with the methods of Data.
func (d Data) Entries() []string {
	paths := []string{d.AdminKubeconfig(), d.LogDir(), d.LastExit(), d.Verified(), d.Ports(), d.ManualPorts(), d.ImportedImages(), d.Inside()}
	for _, b := range d.Binds() {
		paths = append(paths, b.Host)
	}
	paths = append(paths, d.Record())
	names := make([]string, len(paths))
	for i, path := range paths {
		names[i] = filepath.Base(path)
	}
	return names
}

func (d Data) sub(name string) string { return filepath.Join(d.Dir, name) }

// Bind is a directory of the data dir and its place inside.
type Bind struct {
	Host, Inside string
	Mode         uint32
}

// Paths inside the node, on its own tmpfs or bound from the data dir. None is visible from the host under this name.
const (
	InsideKubernetes     = "/etc/kubernetes"
	InsidePKI            = "/etc/kubernetes/pki"
	InsideEtcd           = "/var/lib/etcd"
	InsideContainerdRoot = "/var/lib/containerd"
	InsideContainerdRun  = "/run/containerd"
	InsideContainerdSock = "/run/containerd/containerd.sock"
	InsideShimSockets    = "/run/containerd/s"
	InsideCRIORoot       = "/var/lib/containers"
	InsideCRIORun        = "/run/crio"
	InsideCRIOSock       = "/run/crio/crio.sock"
	InsideStorageRun     = "/run/containers/storage"
	InsideContainersConf = "/etc/containers"
	InsideKubelet        = "/var/lib/kubelet"
	InsideKubeletPKI     = "/var/lib/kubelet/pki"
	InsideBootstrap      = "/etc/kubernetes/bootstrap.kubeconfig"
	InsideCNIState       = "/var/lib/cni"
	InsideCNIConf        = "/etc/cni/net.d"
	InsidePodLogs        = "/var/log/pods"
	InsideContainerLogs  = "/var/log/containers"
	InsideVolumePlugins  = "/var/lib/kubelet/volumeplugins"
	// InsideRun holds what our own node role renders for components on each start.
	InsideRun          = "/run/rootlessnode"
	InsideOCIShim      = "/run/rootlessnode/oci-shim.json"
	InsideResolvConf   = "/run/rootlessnode/resolv.conf"
	InsideFlannelEnv   = "/run/flannel/subnet.env"
	InsideFlannelConf  = "/run/rootlessnode/flannel-net-conf.json"
	InsideCgroup       = "/sys/fs/cgroup"
	InsideCNIConfFile  = "/etc/cni/net.d/10-rootlessnode.conflist"
	InsideRegistryConf = "/etc/containerd/certs.d"
)

// MountNSDir holds the pins of mount namespaces of a rootful node, each a private mount's file; on the host, root's.
const MountNSDir = "/run/rootlessnode/mountns"

// SocketPathMax is the longest path that bind(2) takes for a unix socket: sun_path is 108 bytes with its NUL (unix(7)).
const SocketPathMax = 107

// Cgroup returns the name of the node's subtree in the delegated cgroup.
func Cgroup(name string) string { return "rootlessnode-" + name }

// IsPrivateEnv tells whether a variable (KEY=VALUE) is one of the private keys, which no component may inherit.
func IsPrivateEnv(kv string) bool {
	return strings.HasPrefix(kv, "_ROOTLESSNODE_") || strings.HasPrefix(kv, "_ROOTLESSKIT_")
}

// Handover is what the parent learned before the child went on: network, cgroup, pids. Mode 0600.
func (r Runtime) Handover() string { return filepath.Join(r.Dir, "handover.json") }
