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

//go:generate go test . -run TestGenerated -update

// NodeConfig is the configuration of one node. Start from Default, because a zero NodeConfig is invalid. Complete sets the
// fields that depend on the host.
//
// Each field here and in its groups is the only place of a setting. The comment is the documentation for users, and the tags
// are: default, the default; example, for a field without a fixed default; check, a check of the value (see checkValue);
// instead, the field to use with another container runtime. go generate writes sample.yaml and docs/configuration.md from them.
type NodeConfig struct {
	// The version of this format. Required.
	APIVersion string `json:"apiVersion" default:"rootlessnode.dev/v1alpha1" check:"oneof rootlessnode.dev/v1alpha1"`
	// Required.
	Kind string `json:"kind" default:"NodeConfig" check:"oneof NodeConfig"`

	// The name of the node among the nodes of one account: at most 32 lower case letters, digits and inner hyphens. Do not set it
	// here, but with --name or ROOTLESSNODE_NAME. Only a printed effective config contains it.
	Name string `json:"name,omitempty" example:"default"`
	// The name of the Node object: a DNS name of at most 63 characters. Default: the host's name in lower case.
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
	// The level of the node's own log: debug, info, warning or error.
	LogLevel string `json:"logLevel" default:"info" check:"oneof debug info warning error"`

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

	// The Pod Security Standard that each namespace of the cluster enforces unless its labels select another one
	// (pod-security.kubernetes.io/enforce): privileged, which allows everything; baseline, which rejects privileged pods, hostPath
	// volumes, hostNetwork, hostPorts and others; or restricted. kube-system is exempt. Not for workers, because the control plane
	// enforces it.
	PodSecurity string `json:"podSecurity" default:"privileged" check:"oneof privileged baseline restricted"`
	// The container runtime. See docs/runtimes.md.
	CRI CRI `json:"cri"`
	// containerd, with cri.runtime containerd.
	Containerd Containerd `json:"containerd"`
	// CRI-O, with cri.runtime crio.
	CRIO CRIO `json:"crio"`
	// The pod network between nodes.
	Flannel Flannel `json:"flannel"`
	// The control plane inside the node.
	ControlPlane ControlPlane `json:"controlPlane"`
	// Certificates of the embedded control plane. A certificate with less than a third of its lifetime left is renewed at start.
	Certificates Certificates `json:"certificates"`
	// TCP ports that components listen on in the node's own network namespace. They do not conflict with ports of the host, only
	// with those of hostNetwork pods, which use the network namespace of the node.
	Inside Inside `json:"inside"`
	// Time limits. A duration is a number with a unit: 200ms, 90s, 5m, 24h.
	Timeouts Timeouts `json:"timeouts"`
	// Restarts of components that exit unexpectedly.
	Restart Restart `json:"restart"`
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
	// auto (slirp4netns if it is installed, else gvisor-tap-vsock, which needs no program on the host), slirp4netns,
	// gvisor-tap-vsock, pasta, lxc-user-nic, vpnkit, or none: no connections to the outside, but host ports are still forwarded to
	// the node. The driver host is not supported, because an ordinary user cannot configure the host's network namespace.
	// docs/network-drivers.md compares the drivers.
	Driver string `json:"driver" default:"auto"`
	// MTU of the tap device in bytes, 576 to 65535 (at least 1280 for IPv6). 1500 works on every path, 65520 is faster if the path
	// supports it. Pods have 50 less with vxlan.
	MTU int `json:"mtu" default:"1500" check:"range 576 65535"`
	// The tap network, IPv4, /8 to /25. The node has its 100th address. The host may use this network as well, but the node cannot
	// reach other hosts in it.
	CIDR string `json:"cidr" default:"10.0.2.0/24" check:"IPv4 8 25"`
	// Allows pods to reach services that listen on the host's loopback, at the gateway's address.
	AllowHostLoopback bool `json:"allowHostLoopback" default:"false"`
	// Allows the node and its pods to reach services that listen on the host's other addresses. The services see connections from
	// the host itself. Services that the node needs are always reachable: its own forwarded ports, its name servers, other nodes
	// of the cluster. See docs/networking.md.
	AllowHostAddresses bool `json:"allowHostAddresses" default:"false"`
	// Makes the cluster dual-stack: the node, its pods and its Services have IPv6 in addition to IPv4. Only with slirp4netns and
	// pasta does the node reach the outside by IPv6. You can enable it later; existing pods have IPv6 once they are created again.
	IPv6 bool `json:"ipv6" default:"false"`
	// Confines slirp4netns to a mount namespace with only the host's /etc and /run, read-only. auto does so if the host permits
	// it, and warns otherwise. true refuses to start without it.
	SlirpSandbox AutoBool `json:"slirpSandbox" default:"auto"`
	// Confines slirp4netns with a seccomp filter. auto and true are the same as for slirpSandbox.
	SlirpSeccomp AutoBool `json:"slirpSeccomp" default:"auto"`
	// The bridge on the host that lxc-user-nic connects to. Used by this driver only.
	LXCBridge string `json:"lxcBridge" default:"lxcbr0"`
	// TCP ports on the host's loopback that the node and its pods reach at host.rootlessnode.internal. Other ports on the host's
	// loopback are not reachable.
	HostPorts []int `json:"hostPorts,omitempty" example:"[5432]" check:"range 1 65535"`
	// The address of host.rootlessnode.internal inside the node, IPv4. The host may use this address as well, but it must not be
	// in another network of the node.
	HostAddress string `json:"hostAddress" default:"169.254.100.1"`
	// Up to three DNS servers for names outside of the cluster. Do not use 127.0.0.53: the host's loopback is not reachable from
	// the node. Default: the driver's forwarder, which uses the host's resolver.
	NameServers []string `json:"nameServers,omitempty" example:"[192.0.2.53]"`
}

// Join selects the cluster that the node joins as a worker. If all fields are empty, the node runs its own control plane. The
// bootstrap token is not part of the configuration, because it is a secret and needed only once.
type Join struct {
	// The API server, https://HOST:PORT. The first start needs a bootstrap token (--token, --token-file or
	// ROOTLESSNODE_JOIN_TOKEN).
	Server string `json:"server,omitempty" example:"https://192.0.2.1:6443"`
	// Pins of the cluster's certificate authority: sha256: and the digest of its public key, as `rootlessnode token create` and
	// kubeadm print it.
	CACertHashes []string `json:"caCertHashes,omitempty" example:"[sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef]"`
	// Instead of server: the path of a kubeconfig on the host whose user may request a node certificate.
	BootstrapKubeconfig string `json:"bootstrapKubeconfig,omitempty" example:"/home/user/bootstrap.kubeconfig" check:"path"`
	// Instead of server: the path of a kubeconfig on the host whose user is the node itself.
	Kubeconfig string `json:"kubeconfig,omitempty" example:"/home/user/node.kubeconfig" check:"path"`
}

// Cluster has the addresses that are the same on all nodes of the cluster.
type Cluster struct {
	// The network of the pods, IPv4. It must not overlap serviceCIDR, network.cidr or a network of the host.
	PodCIDR string `json:"podCIDR" default:"10.42.0.0/16" check:"IPv4 0 32"`
	// The network of the Services, IPv4, /12 to /28.
	ServiceCIDR string `json:"serviceCIDR" default:"10.43.0.0/16" check:"IPv4 12 28"`
	// The address of the cluster DNS Service, in serviceCIDR. Default: the tenth address.
	DNSAddress string `json:"dnsAddress,omitempty" example:"10.43.0.10"`
	// The DNS domain of the cluster.
	Domain string `json:"domain" default:"cluster.local"`
	// The prefix length of each node's range in podCIDR. 24 has room for 253 pods.
	NodeCIDRMaskSize int `json:"nodeCIDRMaskSize" default:"24"`
	// The network of the pods with network.ipv6, /48 to /62. Each node has a /64.
	PodCIDRv6 string `json:"podCIDRv6" default:"fd00:10:42::/56" check:"IPv6 48 62"`
	// The network of the Services with network.ipv6, /108 to /124.
	ServiceCIDRv6 string `json:"serviceCIDRv6" default:"fd00:10:43::/112" check:"IPv6 108 124"`
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
	// The address of the host that the API server listens on. With an address other than loopback, other hosts can connect and
	// nodes can join; the certificate then contains the address, and inside.apiServerPort is api.port.
	BindAddress string `json:"bindAddress" default:"127.0.0.1"`
	// The port on the host. For ports below 1024, lower net.ipv4.ip_unprivileged_port_start on the host.
	Port int `json:"port" default:"6443" check:"range 1 65535"`
	// Additional addresses and DNS names for the API server's certificate.
	ExtraSANs []string `json:"extraSANs,omitempty" example:"[node1.example.com]"`
}

// Ports configures the forwarding of host ports to the node.
type Ports struct {
	// auto, builtin, slirp4netns, gvisor-tap-vsock or pesto; none forwards nothing, not even the API server. builtin works with
	// every network.driver, and auto selects it. The others need their own network driver: slirp4netns, gvisor-tap-vsock, and for
	// pesto pasta of passt 2026_05_07 or later. docs/network-drivers.md compares them.
	Driver string `json:"driver" default:"auto"`
	// Preserves the client's address of TCP connections if the kernel supports it. UDP never preserves it.
	SourceIPTransparent bool `json:"sourceIPTransparent" default:"true"`
	// Forwards the node ports of Services (and their health check node ports) automatically.
	NodePorts bool `json:"nodePorts" default:"true"`
	// Gives Services of type LoadBalancer (without a class or of class rootlessnode.dev/host) an address of the host, and forwards
	// their ports.
	LoadBalancers bool `json:"loadBalancers" default:"true"`
	// Forwards the ports of Services on those of their externalIPs that are addresses of the host: true, false, or a list of the
	// addresses and CIDRs that Services may use. Everyone who may write Services can then bind these addresses of the host.
	ExternalIPs AddressRanges `json:"externalIPs" default:"false"`
	// Forwards the hostPorts of pods.
	PodHostPorts bool `json:"podHostPorts" default:"true"`
	// Forwards the declared ports of pods in the node's own network (hostNetwork).
	HostNetworkPods bool `json:"hostNetworkPods" default:"false"`
	// Keeps the ports of a Service closed until it has a ready endpoint, so that connections are refused. Without it, connections
	// are accepted and then closed.
	WaitForEndpoints bool `json:"waitForEndpoints" default:"true"`
	// The addresses of the host that forwarded ports listen on: addresses; 0.0.0.0 or :: for all of a family; names of interfaces
	// for their current addresses; node-ip for the node's address (nodeIP). Default: 127.0.0.1, in a cluster with other nodes also
	// node-ip, and with network.ipv6 also ::1 if the driver forwards IPv6.
	BindAddresses []string `json:"bindAddresses,omitempty" example:"[127.0.0.1]"`
	// Limits of the annotations of Services and pods. docs/networking.md says what users of the cluster can do with them.
	Annotations PortAnnotations `json:"annotations"`
	// The maximum number of host ports of all Services and pods together. Each uses a file descriptor of the node.
	MaxForwards int `json:"maxForwards" default:"4096" check:"range 1 131070"`
	// Added to ports below 1024 of Services and pods: with 10000, port 80 becomes 10080. 0 keeps the port number; then lower
	// net.ipv4.ip_unprivileged_port_start on the host.
	PrivilegedPortOffset int `json:"privilegedPortOffset" default:"0" check:"zeroOrRange 1023 64512"`
	// The range from which host ports are picked for forwards with host port 0.
	PickRange string `json:"pickRange" default:"20000-29999"`
	// Permanent forwards, each "[HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]". Both ports may be ranges of the same length. With HOSTPORT
	// 0, the node picks a port and shows it in `rootlessnode ports`. If a port cannot be bound, the start fails.
	Static []string `json:"static,omitempty" example:"[\"8080:30080\", \"0.0.0.0:5353:30053/udp\", \"9000-9009:9000-9009\", \"0:8080\"]"`
}

// AllNamespaces in PortAnnotations.Namespaces means all namespaces.
const AllNamespaces = "*"

// PortAnnotations limits the annotations rootlessnode.dev/host-port and rootlessnode.dev/bind, and the hostIP of pods.
type PortAnnotations struct {
	// The namespaces in which the annotations rootlessnode.dev/host-port and rootlessnode.dev/bind have an effect: names, or "*"
	// for all. An empty list disables them.
	Namespaces []string `json:"namespaces" default:"[\"*\"]"`
	// Allows rootlessnode.dev/bind and the hostIP of pods to use addresses of the host that are not in bindAddresses.
	Bind bool `json:"bind" default:"false"`
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
	// CPU time, in CPUs: 2, 0.5 or 1500m; at least 500m. Default: no limit.
	CPU Quantity `json:"cpu,omitempty" example:"1500m" check:"limit a number of CPUs such as 2, 0.5 or 1500m"`
	// Memory: 4Gi, 6000M; at least 768Mi. If it is used up, the kernel kills processes of the node, and no others. Default: no
	// limit.
	Memory Quantity `json:"memory,omitempty" example:"4Gi" check:"limit an amount of memory such as 4Gi or 6000M"`
	// Processes and threads, at least 512. Default: no limit.
	Pids int `json:"pids,omitempty" example:"4096"`
	// The part of the limit (or of the machine, if there is no limit) that is for the components and not for pods.
	SystemReserved SystemReserved `json:"systemReserved"`
	// The maximum number of processes and threads of one pod. 0: resources.pids minus systemReserved.pids, or no limit without
	// resources.pids.
	PodPids int `json:"podPids" default:"0"`
	// none or static. With static, containers of Guaranteed pods that request whole CPUs get exclusive CPUs. It needs the
	// controller cpuset.
	CPUManager string `json:"cpuManager" default:"none" check:"oneof none static"`
	// Slows a container down (memory.high) before it is killed at its memory limit: from this percentage of the way from its
	// request to its limit. 0: never. Kubernetes recommends 90 if you use it.
	MemoryHighPercent int `json:"memoryHighPercent" default:"0" check:"range 0 100"`
}

// SystemReserved is the part of the node that is not available to pods.
type SystemReserved struct {
	// CPU time. With cpuManager static, it is rounded up to whole CPUs.
	CPU Quantity `json:"cpu" default:"250m" check:"reservation a number of CPUs such as 2, 0.5 or 1500m"`
	// Memory.
	Memory Quantity `json:"memory" default:"1Gi" check:"reservation an amount of memory such as 4Gi or 6000M"`
	// Processes and threads.
	Pids int `json:"pids" default:"1024"`
}

// Kubelet has the settings of the kubelet.
type Kubelet struct {
	// The maximum number of pods on the node.
	MaxPods int `json:"maxPods" default:"110" check:"min 1"`
	// Signals and the thresholds below which pods are evicted. Entries are added to these; "0%" disables one. The defaults are
	// low, for full disks of developers.
	EvictionHard map[string]string `json:"evictionHard" default:"{imagefs.available: 1%, memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%}"`
	// The cgroups that the kubelet limits as a whole: auto (pods, if the controllers cpu, memory and pids are delegated), or a
	// list of pods, system-reserved, kube-reserved. Empty: none.
	EnforceNodeAllocatable []string `json:"enforceNodeAllocatable" default:"[auto]"`
	// Applies the runtime's default seccomp profile to containers without a profile, if the kernel and runc can filter system
	// calls. Privileged containers and those with the profile Unconfined are not confined. With false, a container must set
	// RuntimeDefault to be confined.
	SeccompDefault bool `json:"seccompDefault" default:"true"`
	// Feature gates by name.
	FeatureGates map[string]bool `json:"featureGates,omitempty" example:"{SomeGate: true}"`
	// The disk usage in percent above which unused images are deleted.
	ImageGCHighThresholdPercent int `json:"imageGCHighThresholdPercent" default:"95" check:"range 0 100"`
	// The disk usage in percent at which the deletion of images ends.
	ImageGCLowThresholdPercent int `json:"imageGCLowThresholdPercent" default:"90" check:"range 0 100"`
	// The interval at which the kubelet checks whether its Node object is up to date.
	NodeStatusUpdateFrequency Duration `json:"nodeStatusUpdateFrequency" default:"10s" check:"positive"`
	// Fields of the KubeletConfiguration (kubelet.config.k8s.io/v1beta1), merged into the configuration of the node. A change of a
	// field that the node depends on can break the node.
	ExtraConfig map[string]any `json:"extraConfig,omitempty" example:"{serializeImagePulls: false}"`
}

// KubeProxy has the settings of kube-proxy.
type KubeProxy struct {
	// auto (nftables if the kernel supports it, else iptables), nftables or iptables.
	Mode string `json:"mode" default:"auto" check:"oneof auto nftables iptables"`
}

// Containerd has the settings of containerd.
type Containerd struct {
	// overlayfs, fuse-overlayfs, native, or auto for the first of these that works.
	Snapshotter string `json:"snapshotter" default:"auto" check:"oneof auto overlayfs fuse-overlayfs native" instead:"crio.storageDriver"`
	// The image of the pod sandboxes. It is imported from the images that are shipped with the components.
	PauseImage string `json:"pauseImage" default:"registry.k8s.io/pause:3.10.2" check:"image" instead:"crio.pauseImage"`
	// Enables the Node Resource Interface, on a socket inside the node.
	NRI bool `json:"nri" default:"false" instead:"crio.nri"`
	// A directory on the host with a hosts.toml file for each registry, as containerd reads it (mirrors, certificates).
	RegistryConfigDir string `json:"registryConfigDir,omitempty" example:"/home/user/.config/containerd/certs.d" check:"path" instead:"crio.registriesConf"`
}

// Flannel has the settings of flannel.
type Flannel struct {
	// vxlan, host-gw or wireguard.
	Backend string `json:"backend" default:"vxlan" check:"oneof vxlan host-gw wireguard"`
	// UDP port of the vxlan backend inside the node.
	VXLANPort int `json:"vxlanPort" default:"8472" check:"range 1 65535"`
}

// ControlPlane has the settings of the control plane.
type ControlPlane struct {
	// Runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler inside this node.
	Embedded bool `json:"embedded" default:"true"`
	// The number of writes after which etcd makes a snapshot and truncates its log.
	EtcdSnapshotCount int `json:"etcdSnapshotCount" default:"10000" check:"min 1"`
	// The maximum size of etcd's database in bytes, at least 67108864 (64 MiB).
	EtcdQuotaBytes int64 `json:"etcdQuotaBytes" default:"2147483648" check:"min 67108864 bytes"`
	// Allows etcd to respond before its writes are on the disk. This is faster, but the cluster can be lost if the host crashes.
	// For tests.
	EtcdUnsafeNoFsync bool `json:"etcdUnsafeNoFsync" default:"false"`
	// The heartbeat interval of etcd's leader. It can be short, because there is only one member.
	EtcdHeartbeat Duration `json:"etcdHeartbeat" default:"10ms" check:"positive"`
	// The time without a leader after which etcd elects one. At start, etcd serves after up to twice this time.
	EtcdElection Duration `json:"etcdElection" default:"100ms" check:"positive"`
	// The maximum number of concurrent read requests of the API server.
	MaxRequestsInflight int `json:"maxRequestsInflight" default:"400" check:"min 1"`
	// The maximum number of concurrent write requests of the API server.
	MaxMutatingRequestsInflight int `json:"maxMutatingRequestsInflight" default:"200" check:"min 1"`
	// The API requests per second that controller manager, scheduler, kubelet and kube-proxy may each send.
	ClientQPS int `json:"clientQPS" default:"100" check:"min 1"`
	// The number of API requests that each of them may send in a burst.
	ClientBurst int `json:"clientBurst" default:"200" check:"min 1"`
	// Additional flags for kube-apiserver, each "--flag=value".
	APIServerExtraArgs []string `json:"apiServerExtraArgs,omitempty" example:"[\"--v=4\"]" check:"argument"`
	// Additional flags for kube-controller-manager.
	ControllerManagerExtraArgs []string `json:"controllerManagerExtraArgs,omitempty" example:"[\"--v=4\"]" check:"argument"`
	// Additional flags for kube-scheduler.
	SchedulerExtraArgs []string `json:"schedulerExtraArgs,omitempty" example:"[\"--v=4\"]" check:"argument"`
	// Deploys the cluster DNS.
	CoreDNS bool `json:"coreDNS" default:"true"`
	// The image of the cluster DNS. It is imported from the images that are shipped with the components.
	CoreDNSImage string `json:"coreDNSImage" default:"registry.k8s.io/coredns/coredns:v1.15.0"`
}

// Certificates has the settings of the certificates of the embedded control plane.
type Certificates struct {
	// Lifetime of a new certificate authority.
	CALifetime Duration `json:"caLifetime" default:"87600h0m0s" check:"positive"`
	// Lifetime of a new certificate.
	Lifetime Duration `json:"lifetime" default:"8760h0m0s" check:"positive"`
}

// Inside are the TCP ports of components in the node's network namespace. They can conflict only with hostNetwork pods,
// because these use the node's network namespace.
type Inside struct {
	// kube-apiserver, https.
	APIServerPort int `json:"apiServerPort" default:"6443" check:"range 1 65535"`
	// etcd for its clients.
	EtcdClientPort int `json:"etcdClientPort" default:"2379" check:"range 1 65535"`
	// etcd for its peers.
	EtcdPeerPort int `json:"etcdPeerPort" default:"2380" check:"range 1 65535"`
	// etcd's health and metrics.
	EtcdMetricsPort int `json:"etcdMetricsPort" default:"2381" check:"range 1 65535"`
	// kube-controller-manager's health and metrics.
	ControllerManagerPort int `json:"controllerManagerPort" default:"10257" check:"range 1 65535"`
	// kube-scheduler's health and metrics.
	SchedulerPort int `json:"schedulerPort" default:"10259" check:"range 1 65535"`
	// The kubelet's API, which logs and exec use.
	KubeletPort int `json:"kubeletPort" default:"10250" check:"range 1 65535"`
	// The kubelet's health.
	KubeletHealthzPort int `json:"kubeletHealthzPort" default:"10248" check:"range 1 65535"`
	// kube-proxy's health.
	KubeProxyHealthzPort int `json:"kubeProxyHealthzPort" default:"10256" check:"range 1 65535"`
	// kube-proxy's metrics.
	KubeProxyMetricsPort int `json:"kubeProxyMetricsPort" default:"10249" check:"range 1 65535"`
	// flannel's health.
	FlannelHealthzPort int `json:"flannelHealthzPort" default:"8471" check:"range 1 65535"`
	// kube-network-policies' health and metrics.
	NetworkPolicyPort int `json:"networkPolicyPort" default:"8473" check:"range 1 65535"`
}

// Timeouts are the time limits of the node.
type Timeouts struct {
	// How long `up` waits until the node is Ready.
	Ready Duration `json:"ready" default:"5m0s" check:"positive"`
	// How long a component may take to become ready for the first time.
	ComponentStart Duration `json:"componentStart" default:"2m0s" check:"positive"`
	// How long a component may take to stop before it is killed.
	ComponentStop Duration `json:"componentStop" default:"10s" check:"positive"`
	// How long all pods together may take to stop at `down`, regardless of their grace periods. 0s: timeouts.stop minus 30s for
	// the rest of the node (minus half of it, if it is below 60s), at most 60s.
	PodStop Duration `json:"podStop" default:"0s" check:"positive"`
	// How long the whole node may take to stop before it is killed. At least timeouts.podStop and timeouts.componentStop together.
	Stop Duration `json:"stop" default:"1m30s" check:"positive"`
	// How long one health probe may take.
	Health Duration `json:"health" default:"15s" check:"positive"`
}

// Restart configures the restarts of a component that exits unexpectedly.
type Restart struct {
	// The delay before the first restart. It doubles with each further restart.
	Initial Duration `json:"initial" default:"200ms" check:"positive"`
	// The maximum delay.
	Max Duration `json:"max" default:"30s" check:"positive"`
	// The time of being ready after which the delay is reset to restart.initial.
	ResetAfter Duration `json:"resetAfter" default:"1m0s" check:"positive"`
	// The number of consecutive starts without becoming ready after which the node fails. 0: never.
	GiveUpAfter int `json:"giveUpAfter" default:"5"`
}

// Duration is a time.Duration in Go's text format: "90s", "8760h".
type Duration time.Duration

// D returns d as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }
