// Package layout defines the names of all directories, files, sockets and environment keys that rootlessnode creates. docs/layout.md
// lists them for users.
//
// The package computes names and does not access the file system, except for WriteJSON and ReadJSON. Each comment says on which side a
// path is valid. Host paths are also valid inside, through the links that copy-up creates, unless the comment says otherwise.
//
// Runs in: parent, child or either.
package layout

import (
	"path/filepath"
	"strings"
)

// Environment keys. Keys with a leading underscore are private to the processes of one node.
const (
	// EnvName is the name of the node, like --name.
	EnvName = "ROOTLESSNODE_NAME"
	// EnvJoinToken is the bootstrap token for `up --join`. The command line removes it from its environment before it starts
	// other programs.
	EnvJoinToken = "ROOTLESSNODE_JOIN_TOKEN"
	// EnvTakenToken passes that token from `up --foreground` to the executable with another network driver that replaces it.
	EnvTakenToken = "_ROOTLESSNODE_JOIN_TOKEN"
	// EnvRelay is the pid of the `host enter` process that relays root's terminal, for the process that enters the account.
	EnvRelay = "_ROOTLESSNODE_RELAY"
	// EnvRole is the role of the process: one of the Role constants. SetRole, RoleEnv and TakeRole set and read it.
	EnvRole = "_ROOTLESSNODE_ROLE"
	// EnvRuntimeDir is the runtime dir of the node, for the roles that do not read it from a descriptor.
	EnvRuntimeDir = "_ROOTLESSNODE_RUNTIME_DIR"
	// EnvPipeFD, EnvStateDir and EnvChildActivation are RootlessKit's keys for its child: the descriptors of its pipes, the path of its
	// state dir, and whether sockets of systemd are passed, which is always false.
	EnvPipeFD          = "_ROOTLESSNODE_PIPE_FD"
	EnvStateDir        = "_ROOTLESSNODE_STATE_DIR"
	EnvChildActivation = "_ROOTLESSNODE_CHILD_USE_ACTIVATION"
)

// Runtime returns the paths of the host files of one run, below XDG_RUNTIME_DIR. All these files are removed when the node has stopped.
type Runtime struct{ Dir string }

// NewRuntime returns the runtime files of the node called name. xdgRuntimeDir is the XDG_RUNTIME_DIR of the account.
func NewRuntime(xdgRuntimeDir, name string) Runtime {
	return Runtime{Dir: filepath.Join(xdgRuntimeDir, "rootlessnode", name)}
}

// Lock is the lock file of the node. The parent locks it with flock while it is running. See parent.Holder.
func (r Runtime) Lock() string { return r.Dir + ".lock" }

// Config is the effective config of the run, mode 0600.
func (r Runtime) Config() string { return filepath.Join(r.Dir, "config.json") }

// StateDir is RootlessKit's state dir; RootlessKit empties and removes it.
func (r Runtime) StateDir() string { return filepath.Join(r.Dir, "rk") }

// APISocket is the socket of RootlessKit's API. The parent listens on it.
func (r Runtime) APISocket() string { return filepath.Join(r.StateDir(), "api.sock") }

// SourcesSocket is the socket that receives the source ranges of forwarded ports. The port driver builtin in the parent listens on it.
func (r Runtime) SourcesSocket() string { return filepath.Join(r.StateDir(), "sources.sock") }

// NodeSocket is the status socket: status, events and control over HTTP. The node role listens on it.
func (r Runtime) NodeSocket() string { return filepath.Join(r.Dir, "node.sock") }

// ExecSocket is the socket for running programs inside. The node role listens on it.
func (r Runtime) ExecSocket() string { return filepath.Join(r.Dir, "exec.sock") }

// HostSocket is the socket through which the node gets connections to selected ports of the host's loopback. The parent listens on it.
func (r Runtime) HostSocket() string { return filepath.Join(r.Dir, "host.sock") }

// CredentialsSocket is the socket through which the kubelet gets the account's logins at registries. The parent listens on it.
func (r Runtime) CredentialsSocket() string { return filepath.Join(r.Dir, "credentials.sock") }

// HostAddresses is the file with the addresses of the host, a list of HostAddress. The parent replaces it when they change.
func (r Runtime) HostAddresses() string { return filepath.Join(r.Dir, "host-addresses.json") }

// NodeAddress is the file with the address by which other nodes reach this one, a JSON string. The parent replaces it when the address
// changes. It exists only in a multi-node cluster.
func (r Runtime) NodeAddress() string { return filepath.Join(r.Dir, "node-address.json") }

// HostRoutes is the file with the routes of the host that overlap the node's networks, a list of RouteOverlap. The parent replaces it
// when they change.
func (r Runtime) HostRoutes() string { return filepath.Join(r.Dir, "host-routes.json") }

// HostResolver is the file with the resolver configuration of the host (hostinfo.Resolver). The parent replaces it when it changes.
func (r Runtime) HostResolver() string { return filepath.Join(r.Dir, "host-resolver.json") }

// PortFaults is the file with the state of the forwarded ports (Forwarding). The parent replaces it when it changes. It does not exist
// before the first fault.
func (r Runtime) PortFaults() string { return filepath.Join(r.Dir, "port-faults.json") }

// NetworkFault is the file with the state of the network driver's process, a NetworkFault. The parent replaces it when the process ends
// and when it runs again. It does not exist before the first end.
func (r Runtime) NetworkFault() string { return filepath.Join(r.Dir, "network-fault.json") }

// CgroupFile is the file with the path of the node's cgroup subtree on the host.
func (r Runtime) CgroupFile() string { return filepath.Join(r.Dir, "cgroup") }

// Uplink is the file with the network settings that the child got by DHCP, a NetworkInfo. It exists only with a network driver that
// uses DHCP.
func (r Runtime) Uplink() string { return filepath.Join(r.Dir, "uplink.json") }

// Failure is the file with the error that ended the roles inside, an errdefs.Report. The first role that fails writes it.
func (r Runtime) Failure() string { return filepath.Join(r.Dir, "failure.json") }

// Removal is the file with the request to remove a data dir from inside a user namespace, a datadir.Request.
func (r Runtime) Removal() string { return filepath.Join(r.Dir, "removal.json") }

// Removed is the file with the result of that removal, a datadir.Result.
func (r Runtime) Removed() string { return filepath.Join(r.Dir, "removed.json") }

// LongestSocket is the longest socket path of a run. The preflight compares its length with SocketPathMax.
func (r Runtime) LongestSocket() string {
	return filepath.Join(r.StateDir(), "gvisortapvsock", "tap.sock")
}

// Data returns the paths of the host files that survive a stop.
type Data struct{ Dir string }

// NewData returns the data files below dir.
func NewData(dir string) Data { return Data{Dir: dir} }

// DefaultDataDir returns the data dir of a node whose config sets none.
func DefaultDataDir(xdgDataHome, name string) string {
	return filepath.Join(xdgDataHome, "rootlessnode", "nodes", name)
}

// UserComponentsDir returns the components directory of the account, the third one that is searched.
func UserComponentsDir(xdgDataHome string) string {
	return filepath.Join(xdgDataHome, "rootlessnode", "bin")
}

// UserAddonsDir returns the directory of addons for all nodes of the account.
func UserAddonsDir(xdgConfigHome string) string {
	return filepath.Join(xdgConfigHome, "rootlessnode", "addons")
}

// UserImagesDir returns the directory of image archives that all nodes of the account import at their start.
func UserImagesDir(xdgDataHome string) string {
	return filepath.Join(xdgDataHome, "rootlessnode", "images")
}

// RegistryDir returns the directory of the registry of the account's nodes. It has one file for each node with a known data dir.
func RegistryDir(xdgDataHome string) string {
	return filepath.Join(xdgDataHome, "rootlessnode", "registry")
}

// RegistryEntry returns the file of the registry that records the data dirs of the node called name. Each start writes it; it is
// removed with the data.
func RegistryEntry(xdgDataHome, name string) string {
	return filepath.Join(RegistryDir(xdgDataHome), name+".json")
}

// KubeconfigRecords returns the directory of the records about the account's kubeconfig files that have a context of a node: one file
// for each of them.
func KubeconfigRecords(xdgDataHome string) string {
	return filepath.Join(xdgDataHome, "rootlessnode", "kubeconfigs")
}

// Record is the file that marks a directory as the data dir of one node, a datadir.Record. It is written before all other files.
func (d Data) Record() string { return d.sub("rootlessnode.json") }

// Lock is the second lock file of the node. The parent locks it like Runtime.Lock, so that a running node is found after its runtime dir
// was removed, for example by the end of a login session.
func (d Data) Lock() string { return d.sub("lock") }

// LogDir is the directory of the log files, one for each component.
func (d Data) LogDir() string { return filepath.Join(d.Dir, "log") }

// Log returns the log file of a component. The log "node" is shared by the parent, child and node roles.
func (d Data) Log(component string) string { return filepath.Join(d.LogDir(), component+".log") }

// AdminKubeconfig is the administrator's kubeconfig for the host, mode 0600.
func (d Data) AdminKubeconfig() string { return filepath.Join(d.Dir, "kubeconfig") }

// LastExit is the file with the errdefs.Report of the last run, if it ended with an error.
func (d Data) LastExit() string { return filepath.Join(d.Dir, "last-exit.json") }

// Verified is the cache of component files whose hash was verified.
func (d Data) Verified() string { return filepath.Join(d.Dir, "verified.json") }

// Ports is the record of the forwards that this node has added.
func (d Data) Ports() string { return filepath.Join(d.Dir, "ports.json") }

// ManualPorts is the file with the manual forwards.
func (d Data) ManualPorts() string { return filepath.Join(d.Dir, "manual-ports.json") }

// ImportedImages is the record of image archives that were imported into the container store.
func (d Data) ImportedImages() string { return filepath.Join(d.Dir, "images.json") }

// Snapshots is the directory of the snapshots of the cluster's state, one directory for each (datadir.Snapshot).
func (d Data) Snapshots() string { return d.sub("snapshots") }

// JoinRecord is a worker's record of the cluster that it joined, mode 0600. It exists after the cluster was contacted.
func (d Data) JoinRecord() string { return filepath.Join(d.Dir, "kubernetes", "join.json") }

// ClusterCA is the certificate of the cluster's certificate authority, created by this node or received when joining.
func (d Data) ClusterCA() string { return filepath.Join(d.PKI(), "ca.crt") }

// BootstrapKubeconfig is the kubeconfig with which a worker requests its certificate, mode 0600. It is removed after the node has one.
func (d Data) BootstrapKubeconfig() string {
	return filepath.Join(d.Dir, "kubernetes", "bootstrap.kubeconfig")
}

// KubeletPKI is the directory with the certificates that a worker's kubelet requests and renews. Symbolic links NAME-current.pem point
// to files with certificate and key. The targets are paths inside; on the host, only their base names are valid.
func (d Data) KubeletPKI() string { return filepath.Join(d.Dir, "kubelet", "pki") }

// Inside is the directory for files that are created inside in copied-up directories: Inside/opt is the base of /opt, and so on. The
// child creates one directory for each of mounts.copyUp except /run.
func (d Data) Inside() string { return d.sub("inside") }

// PKI is the directory of keys and certificates. Inside, it is mounted at InsidePKI.
func (d Data) PKI() string { return filepath.Join(d.Dir, "kubernetes", "pki") }

// Binds returns the persistent directories with the paths where they are mounted inside, in the order of mounting.
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
		{d.sub("volumes"), InsideVolumes, 0o700},
		{d.sub("registry"), InsideLocalRegistry, 0o700},
	}
}

// OnHost returns the path on the host of a path inside that is stored in the data dir. ok is false for other paths.
func (d Data) OnHost(inside string) (path string, ok bool) {
	for _, b := range d.Binds() {
		if below, found := strings.CutPrefix(inside, b.Inside); found && (below == "" || below[0] == '/') {
			return b.Host + below, true
		}
	}
	return "", false
}

// Entries returns the names of all entries that a node creates directly in its data dir, the record last. A test compares them with
// the methods of Data.
func (d Data) Entries() []string {
	paths := []string{d.AdminKubeconfig(), d.LogDir(), d.LastExit(), d.Verified(), d.Ports(), d.ManualPorts(), d.ImportedImages(), d.Inside(), d.Lock(), d.Snapshots()}
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

// Bind is a bind mount from the data dir. Host is the directory, Inside the mount point and Mode the mode of the directory.
type Bind struct {
	Host, Inside string
	Mode         uint32
}

// Paths inside the node, on a tmpfs of the node or bind-mounted from the data dir. The host does not see them under these names.
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
	InsideVolumes        = "/var/lib/rootlessnode/volumes"
	InsideLocalRegistry  = "/var/lib/rootlessnode/registry"
	InsideVolumePlugins  = "/var/lib/kubelet/volumeplugins"
	// InsideRun is the directory of the files that the node role renders for components at each start.
	InsideRun          = "/run/rootlessnode"
	InsideOCIShim      = "/run/rootlessnode/oci-shim.json"
	InsideOCIShims     = "/run/rootlessnode/oci"
	InsideResolvConf   = "/run/rootlessnode/resolv.conf"
	InsideFlannelEnv   = "/run/flannel/subnet.env"
	InsideFlannelConf  = "/run/rootlessnode/flannel-net-conf.json"
	InsideCgroup       = "/sys/fs/cgroup"
	InsideCNIConfFile  = "/etc/cni/net.d/10-rootlessnode.conflist"
	InsideRegistryConf = "/etc/containerd/certs.d"
	InsideRegistries   = "/run/rootlessnode/registries"
)

// MountNSDir is the host directory, owned by root, with the files that keep mount namespaces of a rootful node. Each file is on a
// private mount.
const MountNSDir = "/run/rootlessnode/mountns"

// SocketPathMax is the maximum length in bytes of the path of a unix socket: sun_path has 108 bytes with its NUL (unix(7)).
const SocketPathMax = 107

// Cgroup returns the name of the cgroup of the node called name, below the delegated cgroup.
func Cgroup(name string) string { return "rootlessnode-" + name }

// Handover is the file with the HandoverInfo from the parent for the roles inside, mode 0600.
func (r Runtime) Handover() string { return filepath.Join(r.Dir, "handover.json") }
