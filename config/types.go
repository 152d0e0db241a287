// Package config is the typed, versioned configuration of a node: its defaults, its strict parser and its validation.
//
// Nothing here reads the host, the environment or the network, except Load, which reads the given file. All ports, paths,
// timeouts and limits that users can change are fields in this package; `rootlessnode config default` prints them with their
// defaults.
//
// Runs in: parent, child or either.
package config

// APIVersion and Kind are required in every configuration file.
const (
	APIVersion = "rootlessnode.dev/v1alpha1"
	Kind       = "NodeConfig"
)

// DefaultName is the name of the node if none is given.
const DefaultName = "default"

//go:generate go test . -run TestGenerated -update

// NodeConfig is the configuration of one node. Start from Default, because a zero NodeConfig is invalid. Complete sets the
// fields that depend on the host.
//
// Each field here and in its groups is the only place of a setting. The comment is the documentation for users, and the tags
// are: default, the default; example, for a field without a fixed default; check, a check of the value (see checkValue);
// instead, the field to use with another container runtime; reload, yes if a running node can apply a change: the field only affects
// files and flags of components that Render returns, the configuration of the forwarder, or the log. go generate writes sample.yaml and docs/configuration.md from them.
type NodeConfig struct {
	// The version of this format. Required.
	APIVersion string `json:"apiVersion" default:"rootlessnode.dev/v1alpha1" check:"oneof rootlessnode.dev/v1alpha1"`
	// Required.
	Kind string `json:"kind" default:"NodeConfig" check:"oneof NodeConfig"`

	// The name of the node among the nodes of one account: at most 32 lower case letters, digits and inner hyphens. Do not set it
	// here, but with --name or ROOTLESSNODE_NAME. Only a printed effective config contains it.
	Name string `json:"name,omitempty" example:"default"`
	// The name of the Node object: a DNS name of at most 63 characters. Default: the name of the last start, else the host's name in
	// lower case. A change renames the Node object.
	NodeName string `json:"nodeName,omitempty" example:"node1"`
	// Labels for the Node object. The node sets labels of rootlessnode.dev itself. Of kubernetes.io, only the labels that a
	// kubelet may set are allowed.
	NodeLabels map[string]string `json:"nodeLabels,omitempty" example:"{example.com/team: blue}"`
	// The address of the host at which other nodes and the control plane reach this node, in a cluster with other nodes (join, or
	// api.bindAddress beyond loopback). Default: the address from which the host reaches join.server, else api.bindAddress, else
	// the address of the default route. The node follows changes of this address.
	NodeIP string `json:"nodeIP,omitempty" example:"192.0.2.10"`
	// The directory for data that survives a stop: certificates, the cluster's state, images, volumes, logs. It must be on a local
	// disk and used by this node only (docs/data.md). Default: the directory of the node's last start, else
	// $XDG_DATA_HOME/rootlessnode/nodes/NAME.
	DataDir string `json:"dataDir,omitempty" example:"/home/user/.local/share/rootlessnode/nodes/default" check:"path"`
	// The directory with manifest.json and the components that it lists. Default: the first of these that contains a manifest:
	// ../libexec/rootlessnode relative to the executable, $XDG_DATA_HOME/rootlessnode/bin, the directories of PATH.
	ComponentsDir string `json:"componentsDir,omitempty" example:"/usr/local/libexec/rootlessnode" check:"path"`
	// A directory on the host with archives of images (.tar, .tar.gz, .tgz, .tar.zst), which are imported at each start if they changed. See
	// docs/images.md. Default: $XDG_DATA_HOME/rootlessnode/images.
	PreloadDir string `json:"preloadDir,omitempty" example:"/home/user/.local/share/rootlessnode/images" check:"path"`
	// The minor version of Kubernetes, if the components include several (docs/upgrading.md). Default: that of manifest.json.
	KubernetesVersion string `json:"kubernetesVersion,omitempty" example:"v1.37" check:"minor"`
	// Whether "rootlessnode up" adds the context rootlessnode-NAME to the kubeconfig that kubectl uses: the files in KUBECONFIG, or
	// ~/.kube/config. "down --delete-data" removes it. Programs that embed a node ignore it.
	KubeconfigMerge bool `json:"kubeconfigMerge" default:"true"`
	// The level of the node's own log: debug, info, warning or error.
	LogLevel string `json:"logLevel" default:"info" check:"oneof debug info warning error" reload:"yes"`

	// The connection of the node to the outside.
	Network Network `json:"network"`
	// Settings that are the same on all nodes of the cluster.
	Cluster Cluster `json:"cluster"`
	// The cluster that the node joins as a worker. Without it, the node runs its own control plane. See docs/joining.md.
	Join Join `json:"join,omitzero"`
	// The address on the host at which the API server is reached.
	API API `json:"api"`
	// The forwarding of host ports to the node.
	Ports Ports `json:"ports"`
	// The parts of the host's file system that the node replaces.
	Mounts Mounts `json:"mounts"`
	// The subordinate ids that users in pods are mapped to.
	Subids Subids `json:"subids"`
	// The limits of the whole node, components and pods together, and the part that is reserved for the components. The cgroup
	// enforces them if the controllers are delegated. The Node's allocatable resources respect them in any case.
	Resources Resources `json:"resources"`
	// The kubelet.
	Kubelet Kubelet `json:"kubelet"`
	// kube-proxy.
	KubeProxy KubeProxy `json:"kubeProxy"`
	// The pod network: flannel, or none if the cluster provides one with hostNetwork pods that write a CNI configuration. The node
	// becomes Ready once the CNI configuration exists.
	CNI string `json:"cni" default:"flannel" check:"oneof flannel none"`
	// The component that enforces NetworkPolicies for the pods of this node: none (policies have no effect unless the cluster
	// provides a component), or kube-network-policies, which needs the kernel module nft_queue. See docs/network-policy.md.
	NetworkPolicy string `json:"networkPolicy" default:"none" check:"oneof none kube-network-policies"`
	// The storage of the cluster that this node creates: local (a default StorageClass whose volumes are directories in the data dir), or
	// none. Not for workers. See docs/storage.md.
	Storage string `json:"storage" default:"local" check:"oneof local none"`

	// The Pod Security Standard that each namespace of the cluster enforces unless its labels select another one
	// (pod-security.kubernetes.io/enforce): privileged, which allows everything; baseline, which rejects privileged pods, hostPath
	// volumes, hostNetwork, hostPorts and others; or restricted. kube-system is exempt. Not for workers, because the control plane
	// enforces it.
	PodSecurity string `json:"podSecurity" default:"privileged" check:"oneof privileged baseline restricted" reload:"yes"`
	// The container runtime. See docs/runtimes.md.
	CRI CRI `json:"cri"`
	// Registries by their names in image references, HOST or HOST:PORT, or "*" for all others. An entry has the fields mirrors (a
	// list of URLs), mirrorsOnly, caFile, certFile, keyFile, skipVerify and insecure. Ports of registries and mirrors at localhost or
	// host.rootlessnode.internal are opened like network.hostPorts. With cri.runtime containerd. See docs/registries.md.
	Registries map[string]Registry `json:"registries,omitempty" example:"{docker.io: {mirrors: [https://mirror.example.com]}}"`
	// A registry inside the node, for images that are built on the host.
	LocalRegistry LocalRegistry `json:"localRegistry"`
	// containerd, with cri.runtime containerd.
	Containerd Containerd `json:"containerd"`
	// CRI-O, with cri.runtime crio.
	CRIO CRIO `json:"crio"`
	// The pod network between nodes.
	Flannel Flannel `json:"flannel"`
	// The control plane inside the node.
	ControlPlane ControlPlane `json:"controlPlane"`
	// Resource usage of pods and nodes, for `kubectl top` and autoscalers. Not for workers, because the first node of their cluster
	// has it. See docs/metrics.md.
	Metrics Metrics `json:"metrics"`
	// Directories of addons, and manifest files: objects that the node applies to the cluster and keeps as the files describe them.
	// Not for workers. See docs/addons.md.
	Addons []string `json:"addons,omitempty" example:"[/home/user/cluster/addons]" check:"path"`
	// A directory of addons that may be missing, for all nodes of the account. Default: $XDG_CONFIG_HOME/rootlessnode/addons, which is
	// ~/.config/rootlessnode/addons if XDG_CONFIG_HOME is not set.
	UserAddons string `json:"userAddons,omitempty" example:"/home/user/.config/rootlessnode/addons" check:"path"`
	// Certificates of the embedded control plane. A certificate with less than a third of its lifetime left is renewed, at start and
	// while the node runs.
	Certificates Certificates `json:"certificates"`
	// TCP ports that components listen on in the node's own network namespace. They do not conflict with ports of the host, only
	// with those of hostNetwork pods, which use the network namespace of the node.
	Inside Inside `json:"inside"`
	// Time limits. A duration is a number with a unit: 200ms, 90s, 5m, 24h.
	Timeouts Timeouts `json:"timeouts"`
	// Restarts of components that exit unexpectedly.
	Restart Restart `json:"restart"`
}

// Mounts configures which parts of the host's file system the node replaces.
type Mounts struct {
	// Directories of the host's root that are replaced by directories of the node with links to the entries on the host. /etc,
	// /run and /var must be among them. New entries, including hostPath volumes, are stored in the data dir; those below /run are
	// lost at a stop.
	CopyUp []string `json:"copyUp" default:"[/etc, /run, /var, /opt]" check:"path"`
	// rslave: file systems that are mounted on the host later appear in the node, too. rprivate: they do not.
	Propagation string `json:"propagation" default:"rslave" check:"oneof rslave rprivate"`
}

// Subids selects the source of the subordinate ids: auto, static or dynamic (getsubids).
type Subids struct {
	// auto (getsubids, then the files), static (/etc/subuid and /etc/subgid) or dynamic (getsubids only).
	Source string `json:"source" default:"auto" check:"oneof auto static dynamic"`
}
