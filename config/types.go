// Package config is the typed, versioned configuration of a node: its defaults, its strict parser and its validation.
//
// Nothing here reads the host, the environment or the network, except Load, which reads the given file. All ports, paths,
// timeouts and limits that users can change are fields in this package; `rootlessnode config default` prints them with their
// defaults.
//
// Runs in: parent, child or either.
package config

import "time"

// APIVersion and Kind are required in every configuration file.
const (
	APIVersion = "rootlessnode.dev/v1alpha1"
	Kind       = "NodeConfig"
)

// DefaultName is the name of the node if none is given.
const DefaultName = "default"

// NodeConfig is the configuration of one node. Start from Default, because a zero NodeConfig is invalid. Complete sets the
// fields that depend on the host.
type NodeConfig struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// Name identifies the node among the nodes of one account, a DNS label of at most 32 characters. It is not meant to be set
	// in a file: --name and ROOTLESSNODE_NAME set it.
	Name string `json:"name,omitempty"`
	// NodeName is the name of the Node object, a DNS subdomain. Default: the host's name in lower case.
	NodeName string `json:"nodeName,omitempty"`
	// NodeLabels are set on the Node object when the kubelet registers it.
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`

	// NodeIP is the address of the host at which other nodes and the control plane reach this node. It is used only in a
	// cluster with other nodes (see MultiNode). Default: the address from which the host reaches Join.Server, else
	// API.BindAddress, else the address of the default route. The default is updated when the address changes.
	NodeIP string `json:"nodeIP,omitempty"`

	// DataDir is the directory for data that survives a stop. Default: the one of the node's last start, else
	// $XDG_DATA_HOME/rootlessnode/nodes/NAME.
	DataDir string `json:"dataDir,omitempty"`
	// ComponentsDir is the directory of the components and their manifest. Default: see docs/configuration.md.
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
	// CNI selects the pod network: flannel, or none if the cluster provides one.
	CNI string `json:"cni"`
	// NetworkPolicy selects the component that enforces NetworkPolicies for the node's pods: none or kube-network-policies.
	NetworkPolicy string `json:"networkPolicy"`
	// PodSecurity is the Pod Security Standard that namespaces of the node's own cluster enforce unless their labels select
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

// Network drivers. DriverAuto uses slirp4netns if it is installed, otherwise gvisor-tap-vsock, which needs no program on the
// host. There is no driver for the host's own network; the error of Validate has the reason.
const (
	DriverAuto       = "auto"
	DriverSlirp      = "slirp4netns"
	DriverGvisor     = "gvisor-tap-vsock"
	DriverPasta      = "pasta"
	DriverLXCUserNIC = "lxc-user-nic"
	DriverVPNKit     = "vpnkit"
	// DriverNone isolates the node: pods reach each other, and the host reaches them through forwarded ports, but nothing
	// inside reaches the outside.
	DriverNone = "none"
)

// Port drivers, in addition to DriverAuto, DriverSlirp, DriverGvisor and DriverNone. With PortsPesto, pasta itself forwards,
// controlled by its program pesto.
const (
	PortsBuiltin = "builtin"
	PortsPesto   = "pesto"
)

// HostName is the name at which the node and its pods reach the allowed ports of the host.
const HostName = "host.rootlessnode.internal"

// Network configures the connection of the node's network namespace to the outside.
type Network struct {
	Driver string `json:"driver"`
	// MTU of the tap device in bytes. 1500 works on every path; 65520 is faster if the path supports it.
	MTU int `json:"mtu"`
	// CIDR of the tap network, IPv4. The node has the 100th address; the address of the gateway depends on the driver.
	CIDR string `json:"cidr"`
	// AllowHostLoopback allows pods to reach services on the loopback of the host.
	AllowHostLoopback bool `json:"allowHostLoopback"`
	// AllowHostAddresses allows the node and its pods to reach services on the host's other addresses, which see connections
	// from the host itself. Services that the node needs are always reachable.
	AllowHostAddresses bool `json:"allowHostAddresses"`
	// IPv6 makes the cluster dual-stack: the node, its pods and its Services have IPv6 in addition to IPv4. Connections to the
	// outside use IPv6 if the driver supports it.
	IPv6 bool `json:"ipv6"`
	// SlirpSandbox and SlirpSeccomp confine slirp4netns to a mount namespace with only the host's /etc and /run, and with a
	// seccomp filter. Auto uses each of them if the host permits it.
	SlirpSandbox AutoBool `json:"slirpSandbox"`
	SlirpSeccomp AutoBool `json:"slirpSeccomp"`
	// LXCBridge is the bridge that lxc-user-nic connects to.
	LXCBridge string `json:"lxcBridge"`
	// HostPorts are TCP ports on the host's loopback that the node and its pods reach at HostAddress.
	HostPorts []int `json:"hostPorts,omitempty"`
	// HostAddress is the address of HostName inside: an IPv4 address that only the node uses.
	HostAddress string `json:"hostAddress"`
	// NameServers for pods. Default: the driver's forwarder, which uses the host's resolver.
	NameServers []string `json:"nameServers,omitempty"`
}

// Join selects the cluster that the node joins as a worker. If all fields are empty, the node runs its own control plane. The
// bootstrap token is not part of the configuration, because it is a secret and needed only once.
type Join struct {
	// Server is the API server's URL, https://HOST:PORT. With a bootstrap token, the node discovers the cluster there as kubeadm does.
	Server string `json:"server,omitempty"`
	// CACertHashes pin the cluster's certificate authority: "sha256:" and the hex digest of its public key (SubjectPublicKeyInfo).
	CACertHashes []string `json:"caCertHashes,omitempty"`
	// BootstrapKubeconfig is the path of a kubeconfig on the host whose user may request a node certificate.
	BootstrapKubeconfig string `json:"bootstrapKubeconfig,omitempty"`
	// Kubeconfig is the path of a kubeconfig on the host whose user is the node itself (system:node:NAME).
	Kubeconfig string `json:"kubeconfig,omitempty"`
}

// Cluster has the addresses that are the same on all nodes of the cluster.
type Cluster struct {
	PodCIDR     string `json:"podCIDR"`
	ServiceCIDR string `json:"serviceCIDR"`
	// DNSAddress is the address of the cluster DNS Service. Default: the tenth of ServiceCIDR.
	DNSAddress string `json:"dnsAddress,omitempty"`
	Domain     string `json:"domain"`
	// NodeCIDRMaskSize is the prefix length of each node's range in PodCIDR.
	NodeCIDRMaskSize int `json:"nodeCIDRMaskSize"`
	// PodCIDRv6 and ServiceCIDRv6 are the ranges of a cluster with Network.IPv6. Each node has a /64 of PodCIDRv6.
	PodCIDRv6     string `json:"podCIDRv6"`
	ServiceCIDRv6 string `json:"serviceCIDRv6"`
}

// IPv6 addresses of the tap network. They are the same for every network driver, because slirp4netns and RootlessKit's pasta
// support no others.
const (
	TapCIDRv6    = "fd00::/64"
	NodeIPv6     = "fd00::100"
	TapGatewayV6 = "fd00::2"
)

// PodCIDRs returns the ranges of the pods in the order that Kubernetes expects: IPv4 and, with Network.IPv6, IPv6. The first
// family is the default.
func (c *NodeConfig) PodCIDRs() []string { return c.families(c.Cluster.PodCIDR, c.Cluster.PodCIDRv6) }

// ServiceCIDRs returns the ranges of the Services in the same order as PodCIDRs.
func (c *NodeConfig) ServiceCIDRs() []string {
	return c.families(c.Cluster.ServiceCIDR, c.Cluster.ServiceCIDRv6)
}

func (c *NodeConfig) families(v4, v6 string) []string {
	if c.Network.IPv6 {
		return []string{v4, v6}
	}
	return []string{v4}
}

// API configures the address on the host at which the API server is reached.
type API struct {
	// BindAddress is the address on the host. Other hosts can connect if it is not loopback.
	BindAddress string `json:"bindAddress"`
	// Port on the host, 1 to 65535.
	Port int `json:"port"`
	// ExtraSANs are added to the API server's certificate.
	ExtraSANs []string `json:"extraSANs,omitempty"`
}

// Ports configures the forwarding of host ports to the node.
type Ports struct {
	// Driver is auto, builtin, slirp4netns, gvisor-tap-vsock, pesto or none. builtin works with every network driver; slirp4netns,
	// gvisor-tap-vsock and pesto (of pasta) work with their own only. none forwards nothing, not even the API server.
	Driver string `json:"driver"`
	// SourceIPTransparent preserves the client's address of TCP connections if the kernel supports it.
	SourceIPTransparent bool `json:"sourceIPTransparent"`
	// NodePorts forwards the node ports of Services automatically, including health check node ports.
	NodePorts bool `json:"nodePorts"`
	// LoadBalancers assigns an address of the host to Services of type LoadBalancer and forwards their ports.
	LoadBalancers bool `json:"loadBalancers"`
	// ExternalIPs are the addresses of the host on which Services that list them in externalIPs are forwarded. Empty: none.
	ExternalIPs AddressRanges `json:"externalIPs"`
	// PodHostPorts forwards the hostPorts of pods, HostNetworkPods the declared ports of hostNetwork pods.
	PodHostPorts    bool `json:"podHostPorts"`
	HostNetworkPods bool `json:"hostNetworkPods"`
	// WaitForEndpoints keeps the ports of a Service closed until it has a ready endpoint.
	WaitForEndpoints bool `json:"waitForEndpoints"`
	// BindAddresses are the host addresses that forwarded ports listen on. The name of an interface means its addresses.
	// Default: loopback, for both families with Network.IPv6 if the driver forwards both.
	BindAddresses []string `json:"bindAddresses,omitempty"`
	// Annotations limits what Services and pods can choose by annotations.
	Annotations PortAnnotations `json:"annotations"`
	// MaxForwards is the maximum number of ports of all Services and pods together.
	MaxForwards int `json:"maxForwards"`
	// PrivilegedPortOffset is added to ports below 1024 of Services and pods. 0 keeps the port number.
	PrivilegedPortOffset int `json:"privilegedPortOffset"`
	// PickRange, "FIRST-LAST", is the range from which the node picks ports for forwards with host port 0.
	PickRange string `json:"pickRange"`
	// Static forwards, each "[HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]"; see ParseForward.
	Static []string `json:"static,omitempty"`
}

// AllNamespaces in PortAnnotations.Namespaces means all namespaces.
const AllNamespaces = "*"

// PortAnnotations limits the annotations rootlessnode.dev/host-port and rootlessnode.dev/bind, and the hostIP of pods.
type PortAnnotations struct {
	// Namespaces are the namespaces whose Services and pods may use the annotations, or AllNamespaces.
	Namespaces []string `json:"namespaces"`
	// Bind allows them to choose host addresses that are not in Ports.BindAddresses.
	Bind bool `json:"bind"`
}

// Mounts configures which parts of the host's file system the node replaces.
type Mounts struct {
	// CopyUp lists the directories that are replaced by directories of the node with links to the entries on the host.
	CopyUp []string `json:"copyUp"`
	// Propagation of host mounts into the node: rslave or rprivate.
	Propagation string `json:"propagation"`
}

// Subids selects the source of the subordinate ids: auto, static or dynamic (getsubids).
type Subids struct {
	Source string `json:"source"`
}

// EnforceAuto in Kubelet.EnforceNodeAllocatable is rootlessnode's own value; the others are the kubelet's.
const EnforceAuto = "auto"

// CPU managers.
const (
	CPUManagerNone = "none"
	// CPUManagerStatic assigns exclusive CPUs to containers of Guaranteed pods that request whole CPUs.
	CPUManagerStatic = "static"
)

// Resources limits the whole node and reserves a part for the components.
type Resources struct {
	// CPU (in CPUs), Memory (in bytes) and Pids (tasks: processes and threads) are the limits of the whole node, components and
	// pods together. Empty or 0 means no limit.
	CPU    Quantity `json:"cpu,omitempty"`
	Memory Quantity `json:"memory,omitempty"`
	Pids   int      `json:"pids,omitempty"`
	// SystemReserved is the part that is reserved for the components.
	SystemReserved SystemReserved `json:"systemReserved"`
	// PodPids is the maximum number of tasks of one pod. 0 means Pids minus SystemReserved.Pids, or no limit without Pids.
	PodPids int `json:"podPids"`
	// CPUManager is CPUManagerNone or CPUManagerStatic.
	CPUManager string `json:"cpuManager"`
	// MemoryHighPercent sets memory.high of a container to this percentage of the way from its request to its limit. 0 means
	// not set.
	MemoryHighPercent int `json:"memoryHighPercent"`
}

// SystemReserved is the part of the node that is not available to pods.
type SystemReserved struct {
	CPU    Quantity `json:"cpu"`
	Memory Quantity `json:"memory"`
	Pids   int      `json:"pids"`
}

// Kubelet has the settings of the kubelet.
type Kubelet struct {
	MaxPods int `json:"maxPods"`
	// EvictionHard maps eviction signals to thresholds. The defaults are low, for full disks of developers.
	EvictionHard map[string]string `json:"evictionHard"`
	// EnforceNodeAllocatable is the kubelet's list; empty for none. EnforceAuto means pods, if the controllers are delegated.
	EnforceNodeAllocatable []string `json:"enforceNodeAllocatable"`
	// SeccompDefault applies the runtime's seccomp profile to containers without a profile, if the kernel and the runtime
	// support it.
	SeccompDefault bool `json:"seccompDefault"`
	// FeatureGates are passed to the kubelet.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// ImageGCHighThresholdPercent is the disk usage above which unused images are deleted, until it is below
	// ImageGCLowThresholdPercent.
	ImageGCHighThresholdPercent int `json:"imageGCHighThresholdPercent"`
	ImageGCLowThresholdPercent  int `json:"imageGCLowThresholdPercent"`
	// NodeStatusUpdateFrequency is the interval at which the kubelet computes the status of its Node object.
	NodeStatusUpdateFrequency Duration `json:"nodeStatusUpdateFrequency"`
	// ExtraConfig is merged into the rendered KubeletConfiguration, field by field.
	ExtraConfig map[string]any `json:"extraConfig,omitempty"`
}

// KubeProxy has the settings of kube-proxy.
type KubeProxy struct {
	// Mode is auto (nftables if the kernel supports it, else iptables), nftables or iptables.
	Mode string `json:"mode"`
}

// Containerd has the settings of containerd.
type Containerd struct {
	// Snapshotter is overlayfs, fuse-overlayfs, native, or auto for the first of these that works.
	Snapshotter string `json:"snapshotter"`
	// PauseImage is the image of pod sandboxes. It is imported from the images that are shipped with the components.
	PauseImage string `json:"pauseImage"`
	// NRI enables the Node Resource Interface, on a socket inside the node.
	NRI bool `json:"nri"`
	// RegistryConfigDir is a directory on the host with hosts.toml files. It is bind-mounted into the node.
	RegistryConfigDir string `json:"registryConfigDir,omitempty"`
}

// Flannel has the settings of flannel.
type Flannel struct {
	// Backend is vxlan, host-gw or wireguard.
	Backend string `json:"backend"`
	// VXLANPort is the UDP port of the vxlan backend inside the node.
	VXLANPort int `json:"vxlanPort"`
}

// ControlPlane has the settings of the control plane.
type ControlPlane struct {
	// Embedded runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler inside this node.
	Embedded bool `json:"embedded"`
	// EtcdSnapshotCount, EtcdQuotaBytes and EtcdUnsafeNoFsync are passed to etcd.
	EtcdSnapshotCount int   `json:"etcdSnapshotCount"`
	EtcdQuotaBytes    int64 `json:"etcdQuotaBytes"`
	EtcdUnsafeNoFsync bool  `json:"etcdUnsafeNoFsync"`
	// EtcdHeartbeat and EtcdElection are etcd's heartbeat interval and election timeout. They can be short, because there is
	// only one member. It serves once it has elected itself, which takes up to twice EtcdElection.
	EtcdHeartbeat Duration `json:"etcdHeartbeat"`
	EtcdElection  Duration `json:"etcdElection"`
	// MaxRequestsInflight and MaxMutatingRequestsInflight limit the concurrent requests of the API server.
	MaxRequestsInflight         int `json:"maxRequestsInflight"`
	MaxMutatingRequestsInflight int `json:"maxMutatingRequestsInflight"`
	// ClientQPS and ClientBurst limit the API requests per second, and in a burst, of controller manager, scheduler, kubelet
	// and kube-proxy, each.
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

// Certificates has the settings of the certificates of the embedded control plane.
type Certificates struct {
	// CALifetime and Lifetime are the lifetimes of new authorities and certificates. A certificate with less than a third of
	// its lifetime left is renewed at start.
	CALifetime Duration `json:"caLifetime"`
	Lifetime   Duration `json:"lifetime"`
}

// Inside are the TCP ports of components in the node's network namespace. They can conflict only with hostNetwork pods,
// because these use the node's network namespace.
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

// Timeouts are the time limits of the node.
type Timeouts struct {
	// Ready is how long `up` waits until the node is Ready.
	Ready Duration `json:"ready"`
	// ComponentStart is how long a component may take to become ready for the first time.
	ComponentStart Duration `json:"componentStart"`
	// ComponentStop is the time between TERM and KILL for each component.
	ComponentStop Duration `json:"componentStop"`
	// PodStop is how long all pods together may take to stop at `down`. Complete replaces 0 by the rest of Stop, at most a minute.
	PodStop Duration `json:"podStop"`
	// Stop is how long the whole node may take to stop before it is killed.
	Stop Duration `json:"stop"`
	// Health is how long one health probe of a component may take.
	Health Duration `json:"health"`
}

// Restart configures the restarts of a component that exits unexpectedly.
type Restart struct {
	Initial    Duration `json:"initial"`
	Max        Duration `json:"max"`
	ResetAfter Duration `json:"resetAfter"`
	// GiveUpAfter is the number of consecutive starts without becoming ready after which the node fails. 0 means never.
	GiveUpAfter int `json:"giveUpAfter"`
}

// Duration is a time.Duration in Go's text format: "90s", "8760h".
type Duration time.Duration

// D returns d as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }
