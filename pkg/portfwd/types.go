package portfwd

import (
	"net/netip"
	"strconv"
	"time"
)

// Static is a forward that the config defines.
type Static struct {
	// Name is the name in the owner; "HOSTPORT/PROTOCOL" if empty.
	Name string
	// Protocol is tcp or udp.
	Protocol string
	// HostIP is the address to listen on. The zero Addr means all of Config.BindAddresses.
	HostIP netip.Addr
	// HostPort and ChildPort are 1 to 65535. ChildPort 0 means the same as HostPort. With HostPort 0 the Forwarder picks a
	// free port, records it in the Ledger and reports it in its status; Name and ChildPort must then be set.
	HostPort, ChildPort int
	// ChildIP is the address to connect to inside. The zero Addr means the node's address.
	ChildIP netip.Addr
	// Manual marks a forward that the user added and not the config: its owner is manual/NAME.
	Manual bool
}

// HostAddress is an address of the host and its interface.
type HostAddress struct {
	Interface string     `json:"interface"`
	IP        netip.Addr `json:"ip"`
}

// Config defines the ports to forward. The zero value forwards nothing.
type Config struct {
	// NodePorts forwards the node ports of Services of type NodePort and LoadBalancer, and their health check node ports,
	// under the same number.
	NodePorts bool
	// LoadBalancers forwards the ports of Services of type LoadBalancer whose class is LoadBalancerClass or not set.
	LoadBalancers bool
	// ExternalIPs forwards the ports of Services on their external addresses that are in HostAddresses and, unless it is
	// nil, in ExternalIPRanges. If it is false, a Service with external addresses gets a Warning.
	ExternalIPs      bool
	ExternalIPRanges []netip.Prefix
	// PodHostPorts forwards the host ports of pods, HostNetworkPods the declared ports of pods in the node's network.
	PodHostPorts, HostNetworkPods bool
	// BindAddresses are the host's addresses on which Services and pods listen; DefaultBindAddress if nil. An unspecified
	// address (0.0.0.0, ::) replaces all others of its family.
	BindAddresses []netip.Addr
	// AnnotationNamespaces are the namespaces whose Services and pods may choose host ports and addresses with
	// AnnotationHostPort and AnnotationBind. Nil means all namespaces, an empty list no namespace.
	AnnotationNamespaces []string
	// BindAnywhere allows Services and pods in AnnotationNamespaces to choose, with AnnotationBind or hostIP, host addresses
	// that are not in BindAddresses.
	BindAnywhere bool
	// MaxForwards limits the forwards of Services and pods; DefaultMaxForwards if 0. The last forwards in the order of
	// Wanted are refused.
	MaxForwards int
	// HostAddresses are the host's addresses in order of preference. They are used for external addresses, for interface
	// names in annotations, and for the address of a load balancer if BindAddresses has an unspecified address.
	HostAddresses []HostAddress
	// PrivilegedPortOffset is added to host ports below 1024 of Services and pods; 0 keeps them.
	PrivilegedPortOffset int
	// PrivilegedPortFallback is added to a host port below 1024 of a Service or a pod that the host does not permit; the
	// result is forwarded until the host permits the port itself. 0 means no such forward.
	PrivilegedPortFallback int
	// PickFirst and PickLast are the range from which ports are picked for static forwards with HostPort 0; the Default
	// constants if both are 0.
	PickFirst, PickLast int
	// Static are forwards that do not depend on Services and pods.
	Static []Static
	// ChildIPv4 and ChildIPv6 are the node's addresses. The zero Addr means the address that RootlessKit reports, which is
	// always IPv4.
	ChildIPv4, ChildIPv6 netip.Addr
	// UnprivilegedPortStart is the host's net.ipv4.ip_unprivileged_port_start, for hints; 0 if unknown.
	UnprivilegedPortStart int

	unfiltered bool // no SourceFilter: ports of Services with source ranges stay closed
	// denied has the forwards of Services and pods that the host does not permit. It is guarded by Forwarder.mu.
	denied map[Bind]struct{}
}

// LoadBalancerClass is the class of Services for which this package acts as the load balancer.
const LoadBalancerClass = "rootlessnode.dev/host"

// Default range of picked ports, below the node ports and the kernel's ephemeral ports.
const (
	DefaultPickFirst = 20000
	DefaultPickLast  = 29999
)

// DefaultMaxForwards is the default limit of forwards of Services and pods. Each uses a file descriptor in the parent.
const DefaultMaxForwards = 4096

// DefaultBindAddress returns the address on which Services listen by default.
func DefaultBindAddress() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// Protocols of forwards, with RootlessKit's names.
const (
	TCP4 = "tcp4"
	TCP6 = "tcp6"
	UDP4 = "udp4"
	UDP6 = "udp6"
)

// Bind is the place on the host on which one forward listens.
type Bind struct {
	// Proto is one of TCP4, TCP6, UDP4, UDP6.
	Proto string
	IP    netip.Addr
	Port  int
}

func (b Bind) String() string {
	return netip.AddrPortFrom(b.IP, uint16(b.Port)).String() + "/" + b.Proto
}

// Kinds of owners.
const (
	KindService = "Service"
	KindPod     = "Pod"
	KindStatic  = "static"
	KindManual  = "manual"
)

// Owner is the object that a forward belongs to: a port of a Service or a pod, or a static forward.
type Owner struct {
	// Kind is one of the Kind constants.
	Kind string
	// Namespace is empty for a static forward.
	Namespace, Name string
	// UID is the UID of the Service or the pod.
	UID string
	// Port is the port's name, or its number if it has none.
	Port string
}

// String returns NAMESPACE/NAME/PORT for a Service, pod:NAMESPACE/NAME/PORT, static/NAME or manual/NAME.
func (o Owner) String() string {
	switch o.Kind {
	case KindService:
		return o.Namespace + "/" + o.Name + "/" + o.Port
	case KindPod:
		return "pod:" + o.Namespace + "/" + o.Name + "/" + o.Port
	}
	return o.Kind + "/" + o.Name
}

// inCluster reports whether o is a Service or a pod.
func (o Owner) inCluster() bool { return o.Kind == KindService || o.Kind == KindPod }

// Forward is one wanted forward.
type Forward struct {
	Bind
	// ChildIP is the address to connect to inside. The zero Addr means the node's address of Proto's family.
	ChildIP   netip.Addr
	ChildPort int
	Owner     Owner
	// Waiting reports whether no endpoint is ready, so that the port must refuse connections.
	Waiting bool
	// Assigned reports whether the API server assigned the host port to the Service, as its node port or health check node
	// port, and the number is unchanged.
	Assigned bool
	// Created is the creation time of the Service or pod, in seconds; zero if unknown.
	Created time.Time
	// Sources are the clients that may connect.
	Sources SourceRanges
}

// Refusal is a forward that a Service or a pod requests and that is not made.
type Refusal struct {
	Forward
	Reason, Message string
}

// Warning reports something requested that cannot be forwarded at all.
type Warning struct {
	Owner           Owner
	Reason, Message string
}

func portName(name string, number int) string {
	if name != "" {
		return name
	}
	return strconv.Itoa(number)
}
