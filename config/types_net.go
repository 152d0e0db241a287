package config

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
	// The tap network, IPv4, /8 to /25. The node has its 100th address. It must not contain a network or name server of the host. If the
	// default does, the node uses a free range instead.
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
	// The port on the host. With 0 the first start picks a free port of ports.pickRange and keeps it with the data; status shows it.
	// For ports below 1024, lower net.ipv4.ip_unprivileged_port_start on the host.
	Port int `json:"port" default:"6443" check:"range 0 65535"`
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
	BindAddresses []string `json:"bindAddresses,omitempty" example:"[127.0.0.1]" reload:"yes"`
	// Limits of the annotations of Services and pods. docs/networking.md says what users of the cluster can do with them.
	Annotations PortAnnotations `json:"annotations"`
	// The maximum number of host ports of all Services and pods together. Each uses a file descriptor of the node.
	MaxForwards int `json:"maxForwards" default:"4096" check:"range 1 131070" reload:"yes"`
	// Added to ports below 1024 of Services and pods: with 10000, port 80 becomes 10080. 0 keeps the port number; then lower
	// net.ipv4.ip_unprivileged_port_start on the host.
	PrivilegedPortOffset int `json:"privilegedPortOffset" default:"0" check:"zeroOrRange 1023 64512" reload:"yes"`
	// Added to a port below 1024 of a Service or pod if the host does not permit it: with 8000, port 8080 is forwarded as long as
	// port 80 is denied. 0 forwards no other port.
	PrivilegedPortFallback int `json:"privilegedPortFallback" default:"0" check:"zeroOrRange 1023 64512" reload:"yes"`
	// The range from which host ports are picked for forwards with host port 0 and for api.port 0.
	PickRange string `json:"pickRange" default:"20000-29999" reload:"yes"`
	// Permanent forwards, each "[HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]". Both ports may be ranges of the same length. With HOSTPORT
	// 0, the node picks a port and shows it in `rootlessnode ports`. If a port cannot be bound, the start fails.
	Static []string `json:"static,omitempty" example:"[\"8080:30080\", \"0.0.0.0:5353:30053/udp\", \"9000-9009:9000-9009\", \"0:8080\"]" reload:"yes"`
}

// AllNamespaces in PortAnnotations.Namespaces means all namespaces.
const AllNamespaces = "*"

// PortAnnotations limits the annotations rootlessnode.dev/host-port and rootlessnode.dev/bind, and the hostIP of pods.
type PortAnnotations struct {
	// The namespaces in which the annotations rootlessnode.dev/host-port and rootlessnode.dev/bind have an effect: names, or "*"
	// for all. An empty list disables them.
	Namespaces []string `json:"namespaces" default:"[\"*\"]" reload:"yes"`
	// Allows rootlessnode.dev/bind and the hostIP of pods to use addresses of the host that are not in bindAddresses.
	Bind bool `json:"bind" default:"false" reload:"yes"`
}
