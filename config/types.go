// Package config is the typed, versioned configuration of a node: its defaults, its strict reader and its validation.
//
// It is pure: nothing here reads the host, the environment or the network, apart from Load, which reads the one file
// that it is given. Every port, path, timeout and default number of rootlessnode stands in this package and is printed
// by `rootlessnode config default`.
//
// Runs in: parent, child or either.
package config

import "time"

// APIVersion and Kind head every configuration file.
const (
	APIVersion = "rootlessnode.dev/v1alpha1"
	Kind       = "NodeConfig"
)

// DefaultName is the node's name where none is given.
const DefaultName = "default"

// NodeConfig is the whole configuration of one node. Begin with Default: a zero NodeConfig is not a usable one. Complete
// fills in what depends on the host.
type NodeConfig struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// Name tells the nodes of one account apart. It is a DNS label of at most 32 characters. It is not read from the
	// file: --name and ROOTLESSNODE_NAME set it.
	Name string `json:"name,omitempty"`
	// NodeName is the name of the Node object, a DNS subdomain. Default: the host's name in lower case.
	NodeName string `json:"nodeName,omitempty"`
	// NodeLabels are set on the Node object when the kubelet registers it.
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`

	// NodeIP is the address of the host by which other nodes and the control plane reach this one. It matters to a node of
	// a cluster with others alone: see MultiNode. Default: the address from which the host reaches Join.Server, else
	// API.BindAddress, else the address of the default route; it is followed when it changes.
	NodeIP string `json:"nodeIP,omitempty"`

	// DataDir keeps what must survive a stop. Default: that of the node's last start, else
	// $XDG_DATA_HOME/rootlessnode/nodes/NAME.
	DataDir string `json:"dataDir,omitempty"`
	// ComponentsDir holds the components and their manifest. Default: found, in the order of docs/configuration.md.
	ComponentsDir string `json:"componentsDir,omitempty"`
	// LogLevel is debug, info, warning or error.
	LogLevel string `json:"logLevel"`

	Network   Network   `json:"network"`
	Cluster   Cluster   `json:"cluster"`
	Join      Join      `json:"join,omitzero"`
	API       API       `json:"api"`
	Ports     Ports     `json:"ports"`
	Mounts    Mounts    `json:"mounts"`
	Subids    Subids    `json:"subids"`
	Resources Resources `json:"resources"`
	Kubelet   Kubelet   `json:"kubelet"`
	KubeProxy KubeProxy `json:"kubeProxy"`
	// CNI says whose the pod network is: flannel, or none, which leaves it to the cluster.
	CNI string `json:"cni"`
	// NetworkPolicy says what enforces NetworkPolicies for the node's pods: none of the node's own, or kube-network-policies.
	NetworkPolicy string `json:"networkPolicy"`
	// PodSecurity is the Pod Security Standard that namespaces of the node's own cluster enforce unless their labels name
	// another one: privileged, baseline or restricted.
	PodSecurity  string       `json:"podSecurity"`
	CRI          CRI          `json:"cri"`
	Containerd   Containerd   `json:"containerd"`
	CRIO         CRIO         `json:"crio"`
	Flannel      Flannel      `json:"flannel"`
	ControlPlane ControlPlane `json:"controlPlane"`
	Certificates Certificates `json:"certificates"`
	Inside       Inside       `json:"inside"`
	Timeouts     Timeouts     `json:"timeouts"`
	Restart      Restart      `json:"restart"`
}

// Network drivers. DriverAuto takes slirp4netns where it is found and gvisor-tap-vsock, which needs no program of the
// host, elsewhere. There is no driver for the host's own network: Validate says why.
const (
	DriverAuto       = "auto"
	DriverSlirp      = "slirp4netns"
	DriverGvisor     = "gvisor-tap-vsock"
	DriverPasta      = "pasta"
	DriverLXCUserNIC = "lxc-user-nic"
	DriverVPNKit     = "vpnkit"
	// DriverNone gives the node a network with nothing behind it: pods reach one another and, through forwarded ports,
	// the host reaches them, but nothing inside reaches out.
	DriverNone = "none"
)

// Port drivers, besides DriverAuto, DriverSlirp, DriverGvisor and DriverNone, which both kinds share. PortsPesto has
// pasta itself forward, told by its program pesto.
const (
	PortsBuiltin = "builtin"
	PortsPesto   = "pesto"
)

// HostName is the name by which the node and its pods reach what of the host they may.
const HostName = "host.rootlessnode.internal"

// Network is the node's uplink: how its network namespace reaches the world.
type Network struct {
	Driver string `json:"driver"`
	// MTU of the tap device in bytes. 1500 fits every path; 65520 is faster where the path allows it.
	MTU int `json:"mtu"`
	// CIDR of the tap network, IPv4. The node takes the 100th address, the gateway the driver's.
	CIDR string `json:"cidr"`
	// AllowHostLoopback lets pods reach the loopback services of the host. Off unless asked.
	AllowHostLoopback bool `json:"allowHostLoopback"`
	// AllowHostAddresses lets the node and its pods reach services at the host's other addresses, where they appear as the
	// host itself. Off unless asked; what the node itself needs there is always reachable.
	AllowHostAddresses bool `json:"allowHostAddresses"`
	// IPv6 gives the node, its pods and its Services IPv6 beside IPv4: a dual-stack cluster. The way out has it where the
	// driver can.
	IPv6 bool `json:"ipv6"`
	// SlirpSandbox and SlirpSeccomp confine slirp4netns: to a mount namespace that holds only the host's /etc and /run, and by
	// a seccomp filter. Auto uses each where the host permits it.
	SlirpSandbox AutoBool `json:"slirpSandbox"`
	SlirpSeccomp AutoBool `json:"slirpSeccomp"`
	// LXCBridge is the bridge that lxc-user-nic connects to.
	LXCBridge string `json:"lxcBridge"`
	// HostPorts are TCP ports of the host's loopback that the node and its pods reach at HostAddress.
	HostPorts []int `json:"hostPorts,omitempty"`
	// HostAddress is what HostName stands for inside: an IPv4 address of the node alone.
	HostAddress string `json:"hostAddress"`
	// NameServers for pods. Default: the driver's own forwarder, which asks the host each time.
	NameServers []string `json:"nameServers,omitempty"`
}

// Join says which cluster the node is a worker of; all empty, it brings its own control plane. The bootstrap token is not
// here: it is needed once, and is a secret.
type Join struct {
	// Server is the API server's URL, https://HOST:PORT. With a bootstrap token the cluster is found there as kubeadm does.
	Server string `json:"server,omitempty"`
	// CACertHashes pin the cluster's authority: "sha256:" and the hex digest of its public key (SubjectPublicKeyInfo).
	CACertHashes []string `json:"caCertHashes,omitempty"`
	// BootstrapKubeconfig is a kubeconfig of the host whose user may ask for a node certificate.
	BootstrapKubeconfig string `json:"bootstrapKubeconfig,omitempty"`
	// Kubeconfig is a kubeconfig of the host whose user is the node itself (system:node:NAME).
	Kubeconfig string `json:"kubeconfig,omitempty"`
}

// Cluster holds the addresses that all nodes of the cluster agree on.
type Cluster struct {
	PodCIDR     string `json:"podCIDR"`
	ServiceCIDR string `json:"serviceCIDR"`
	// DNSAddress is the cluster DNS Service's address. Default: the tenth of ServiceCIDR.
	DNSAddress string `json:"dnsAddress,omitempty"`
	Domain     string `json:"domain"`
	// NodeCIDRMaskSize is the prefix length of each node's share of PodCIDR.
	NodeCIDRMaskSize int `json:"nodeCIDRMaskSize"`
	// PodCIDRv6 and ServiceCIDRv6 are the ranges of a cluster with Network.IPv6. A node's share of the first is a /64.
	PodCIDRv6     string `json:"podCIDRv6"`
	ServiceCIDRv6 string `json:"serviceCIDRv6"`
}

// The node's side of IPv6, with every network driver: slirp4netns and RootlessKit's pasta know no other addresses.
const (
	TapCIDRv6    = "fd00::/64"
	NodeIPv6     = "fd00::100"
	TapGatewayV6 = "fd00::2"
)

// PodCIDRs and ServiceCIDRs are the cluster's ranges, one or, with IPv6, two, as Kubernetes takes them: the first family
// is the one of whoever asks for none.
func (c *NodeConfig) PodCIDRs() []string { return c.families(c.Cluster.PodCIDR, c.Cluster.PodCIDRv6) }

// ServiceCIDRs: see PodCIDRs.
func (c *NodeConfig) ServiceCIDRs() []string {
	return c.families(c.Cluster.ServiceCIDR, c.Cluster.ServiceCIDRv6)
}

func (c *NodeConfig) families(v4, v6 string) []string {
	if c.Network.IPv6 {
		return []string{v4, v6}
	}
	return []string{v4}
}

// API is where the API server is reached from the host.
type API struct {
	// BindAddress on the host. Anything beyond loopback must be asked for here.
	BindAddress string `json:"bindAddress"`
	// Port on the host, 1 to 65535.
	Port int `json:"port"`
	// ExtraSANs are added to the API server's certificate.
	ExtraSANs []string `json:"extraSANs,omitempty"`
}

// Ports says how Service ports reach the host.
type Ports struct {
	// Driver is auto, builtin, which works with every network driver, or slirp4netns, gvisor-tap-vsock or pesto (of
	// pasta), which work with their own; or none for no forwarding at all, not even of the API server.
	Driver string `json:"driver"`
	// SourceIPTransparent keeps the client's address of TCP connections where the kernel can.
	SourceIPTransparent bool `json:"sourceIPTransparent"`
	// NodePorts forwards the node ports of Services on their own, health check node ports included.
	NodePorts bool `json:"nodePorts"`
	// LoadBalancers gives Services of type LoadBalancer an address of the host and forwards their ports.
	LoadBalancers bool `json:"loadBalancers"`
	// ExternalIPs are the addresses of the host on which Services that list them in externalIPs are forwarded. Empty: none.
	ExternalIPs AddressRanges `json:"externalIPs"`
	// PodHostPorts forwards the hostPorts of pods, HostNetworkPods the ports declared by pods in the node's network.
	PodHostPorts    bool `json:"podHostPorts"`
	HostNetworkPods bool `json:"hostNetworkPods"`
	// WaitForEndpoints keeps ports of Services without a ready endpoint closed.
	WaitForEndpoints bool `json:"waitForEndpoints"`
	// BindAddresses are the host addresses that forwarded ports listen on; names of interfaces stand for theirs. Default:
	// loopback, of both families with Network.IPv6 where the driver forwards both.
	BindAddresses []string `json:"bindAddresses,omitempty"`
	// Annotations limits what Services and pods choose for themselves.
	Annotations PortAnnotations `json:"annotations"`
	// MaxForwards limits the ports of Services and pods together.
	MaxForwards int `json:"maxForwards"`
	// PrivilegedPortOffset is added to ports below 1024 of Services and pods. 0: they keep their number.
	PrivilegedPortOffset int `json:"privilegedPortOffset"`
	// PickRange, "FIRST-LAST", is where host ports are picked from for forwards that leave the choice to the node.
	PickRange string `json:"pickRange"`
	// Static forwards, each "[HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]"; see ParseForward.
	Static []string `json:"static,omitempty"`
}

// AllNamespaces in PortAnnotations.Namespaces means every namespace.
const AllNamespaces = "*"

// PortAnnotations limits the annotations rootlessnode.dev/host-port and rootlessnode.dev/bind, and the hostIP of pods.
type PortAnnotations struct {
	// Namespaces are those whose Services and pods may use the annotations; AllNamespaces for all.
	Namespaces []string `json:"namespaces"`
	// Bind lets them choose addresses of the host that Ports.BindAddresses does not contain.
	Bind bool `json:"bind"`
}

// Mounts says what of the host's file system the node replaces.
type Mounts struct {
	// CopyUp lists the directories that are replaced by directories of the node with links to the host's entries.
	CopyUp []string `json:"copyUp"`
	// Propagation of host mounts into the node: rslave or rprivate.
	Propagation string `json:"propagation"`
}

// Subids says where the subordinate ids come from: auto, static or dynamic (getsubids).
type Subids struct {
	Source string `json:"source"`
}

// EnforceAuto is the one word of Kubelet.EnforceNodeAllocatable that is ours.
const EnforceAuto = "auto"

// CPU managers.
const (
	CPUManagerNone = "none"
	// CPUManagerStatic gives containers of Guaranteed pods with whole CPUs CPUs of their own.
	CPUManagerStatic = "static"
)

// Resources caps the whole node, and says what of it is not for pods.
type Resources struct {
	// CPU (in CPUs), Memory (in bytes) and Pids (tasks: processes and threads) are the most that the whole node may use,
	// components and pods together. Empty or 0: no cap.
	CPU    Quantity `json:"cpu,omitempty"`
	Memory Quantity `json:"memory,omitempty"`
	Pids   int      `json:"pids,omitempty"`
	// SystemReserved is kept for the components.
	SystemReserved SystemReserved `json:"systemReserved"`
	// PodPids is the most tasks of one pod. 0: with Pids what the components leave, else no limit.
	PodPids int `json:"podPids"`
	// CPUManager is none or static.
	CPUManager string `json:"cpuManager"`
	// MemoryHighPercent places memory.high of a container on the way from its request to its limit. 0: none.
	MemoryHighPercent int `json:"memoryHighPercent"`
}

// SystemReserved is what of the node the scheduler does not give to pods.
type SystemReserved struct {
	CPU    Quantity `json:"cpu"`
	Memory Quantity `json:"memory"`
	Pids   int      `json:"pids"`
}

// Kubelet settings that users change.
type Kubelet struct {
	MaxPods int `json:"maxPods"`
	// EvictionHard: signal to threshold. The defaults suit developers' full disks.
	EvictionHard map[string]string `json:"evictionHard"`
	// EnforceNodeAllocatable: kubelet's list, empty for none; EnforceAuto alone for pods where the controllers are there.
	EnforceNodeAllocatable []string `json:"enforceNodeAllocatable"`
	// SeccompDefault confines containers that name no seccomp profile by the runtime's, where the kernel and the runtime can.
	SeccompDefault bool `json:"seccompDefault"`
	// FeatureGates are passed to the kubelet.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// ImageGCHighThresholdPercent of disk use at which unused images are removed.
	ImageGCHighThresholdPercent int `json:"imageGCHighThresholdPercent"`
	ImageGCLowThresholdPercent  int `json:"imageGCLowThresholdPercent"`
	// NodeStatusUpdateFrequency is how often the kubelet looks whether its Node object is up to date.
	NodeStatusUpdateFrequency Duration `json:"nodeStatusUpdateFrequency"`
	// ExtraConfig is merged over the rendered KubeletConfiguration, field by field.
	ExtraConfig map[string]any `json:"extraConfig,omitempty"`
}

// KubeProxy settings.
type KubeProxy struct {
	// Mode is auto (nftables where the kernel has it), nftables or iptables.
	Mode string `json:"mode"`
}

// Containerd settings.
type Containerd struct {
	// Snapshotter is auto (overlayfs, fuse-overlayfs, native by probe) or one of these.
	Snapshotter string `json:"snapshotter"`
	// PauseImage is the sandbox image. It is imported from the images beside the components.
	PauseImage string `json:"pauseImage"`
	// NRI switches the Node Resource Interface on, at a socket of the node's own.
	NRI bool `json:"nri"`
	// RegistryConfigDir is a host directory with hosts.toml files, bound into the node.
	RegistryConfigDir string `json:"registryConfigDir,omitempty"`
}

// Flannel settings.
type Flannel struct {
	// Backend is vxlan, host-gw or wireguard.
	Backend string `json:"backend"`
	// VXLANPort is the UDP port of the vxlan backend inside the node.
	VXLANPort int `json:"vxlanPort"`
}

// ControlPlane settings.
type ControlPlane struct {
	// Embedded runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler inside this node.
	Embedded bool `json:"embedded"`
	// EtcdSnapshotCount, EtcdQuotaBytes and EtcdUnsafeNoFsync are etcd's own settings.
	EtcdSnapshotCount int   `json:"etcdSnapshotCount"`
	EtcdQuotaBytes    int64 `json:"etcdQuotaBytes"`
	EtcdUnsafeNoFsync bool  `json:"etcdUnsafeNoFsync"`
	// EtcdHeartbeat and EtcdElection are etcd's heartbeat interval and election timeout. A member on its own needs no
	// patience with others: it can serve only once it has elected itself, which takes up to twice EtcdElection.
	EtcdHeartbeat Duration `json:"etcdHeartbeat"`
	EtcdElection  Duration `json:"etcdElection"`
	// MaxRequestsInflight and MaxMutatingRequestsInflight bound what the API server does at a time.
	MaxRequestsInflight         int `json:"maxRequestsInflight"`
	MaxMutatingRequestsInflight int `json:"maxMutatingRequestsInflight"`
	// ClientQPS and ClientBurst are the API requests a second, and in a row, of controller manager, scheduler, kubelet
	// and kube-proxy.
	ClientQPS   int `json:"clientQPS"`
	ClientBurst int `json:"clientBurst"`
	// APIServerExtraArgs, ControllerManagerExtraArgs and SchedulerExtraArgs are appended to the rendered flags.
	APIServerExtraArgs         []string `json:"apiServerExtraArgs,omitempty"`
	ControllerManagerExtraArgs []string `json:"controllerManagerExtraArgs,omitempty"`
	SchedulerExtraArgs         []string `json:"schedulerExtraArgs,omitempty"`
	// CoreDNS deploys the cluster DNS.
	CoreDNS      bool   `json:"coreDNS"`
	CoreDNSImage string `json:"coreDNSImage"`
}

// Certificates of the embedded control plane.
type Certificates struct {
	// CALifetime and Lifetime of new authorities and certificates. A certificate with less than a third of its life
	// left is renewed at start.
	CALifetime Duration `json:"caLifetime"`
	Lifetime   Duration `json:"lifetime"`
}

// Inside are the TCP ports that components listen on in the node's own network namespace, where they collide only with
// pods of the host's network (hostNetwork: true), which is the node's.
type Inside struct {
	APIServerPort         int `json:"apiServerPort"`
	EtcdClientPort        int `json:"etcdClientPort"`
	EtcdPeerPort          int `json:"etcdPeerPort"`
	EtcdMetricsPort       int `json:"etcdMetricsPort"`
	ControllerManagerPort int `json:"controllerManagerPort"`
	SchedulerPort         int `json:"schedulerPort"`
	KubeletPort           int `json:"kubeletPort"`
	KubeletHealthzPort    int `json:"kubeletHealthzPort"`
	KubeProxyHealthzPort  int `json:"kubeProxyHealthzPort"`
	KubeProxyMetricsPort  int `json:"kubeProxyMetricsPort"`
	FlannelHealthzPort    int `json:"flannelHealthzPort"`
	NetworkPolicyPort     int `json:"networkPolicyPort"`
}

// Timeouts of the node.
type Timeouts struct {
	// Ready is how long `up` waits for the node to be Ready.
	Ready Duration `json:"ready"`
	// ComponentStart is how long a component may take until it is first usable.
	ComponentStart Duration `json:"componentStart"`
	// ComponentStop is the grace between TERM and KILL for each component.
	ComponentStop Duration `json:"componentStop"`
	// PodStop is how long all pods together may take to stop at `down`. 0 becomes what Stop leaves, at most a minute.
	PodStop Duration `json:"podStop"`
	// Stop is how long the whole node may take to stop before it is killed.
	Stop Duration `json:"stop"`
	// Health is how long one health probe of a component may take.
	Health Duration `json:"health"`
}

// Restart is the back-off of a component that ends by itself.
type Restart struct {
	Initial    Duration `json:"initial"`
	Max        Duration `json:"max"`
	ResetAfter Duration `json:"resetAfter"`
	// GiveUpAfter so many starts in a row that never became usable the node fails. 0 never gives up.
	GiveUpAfter int `json:"giveUpAfter"`
}

// Duration is a time.Duration written as Go writes it: "90s", "8760h".
type Duration time.Duration

// D returns d as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }
