package portfwd

import (
	"net/netip"
	"strconv"
	"time"
)

// Static is a forward that the config asks for.
type Static struct {
	// Name is shown as the owner; "HOSTPORT/PROTOCOL" if empty.
	Name string
	// Protocol is tcp or udp.
	Protocol string
	// HostIP is where to listen; if it is the zero Addr, on all of Config.BindAddresses.
	HostIP netip.Addr
	// HostPort and ChildPort are 1 to 65535; ChildPort 0 means the same as HostPort. HostPort 0 lets the Forwarder pick a
	// free one, which it keeps for as long as the Ledger remembers and shows in its status. Name must be set then, and
	// ChildPort.
	HostPort, ChildPort int
	// ChildIP is where to connect inside; the zero Addr means the node's address.
	ChildIP netip.Addr
	// Manual marks one that was made by hand and not by the config: its owner is shown as manual/NAME.
	Manual bool
}

// HostAddress is one address of the host and the interface that has it.
type HostAddress struct {
	Interface string     `json:"interface"`
	IP        netip.Addr `json:"ip"`
}

// Config says what to forward. The zero value forwards nothing.
type Config struct {
	// NodePorts forwards the node ports of Services of type NodePort and LoadBalancer, and their health check node ports,
	// under the same number.
	NodePorts bool
	// LoadBalancers forwards the ports of Services of type LoadBalancer whose class is LoadBalancerClass or none.
	LoadBalancers bool
	// ExternalIPs forwards the ports of Services on those of their external addresses that are in HostAddresses and, unless
	// it is nil, in ExternalIPRanges. Without it, a Service that has external addresses gets a Warning.
	ExternalIPs      bool
	ExternalIPRanges []netip.Prefix
	// PodHostPorts forwards the host ports of pods; HostNetworkPods the declared ports of pods in the node's network.
	PodHostPorts, HostNetworkPods bool
	// BindAddresses are the host's addresses on which Services and pods listen; DefaultBindAddress if it is nil. An
	// unspecified address (0.0.0.0, ::) takes the place of all others of its family.
	BindAddresses []netip.Addr
	// AnnotationNamespaces are the namespaces whose Services and pods may choose host ports and addresses by
	// AnnotationHostPort and AnnotationBind. Nil means all namespaces, an empty list none.
	AnnotationNamespaces []string
	// BindAnywhere lets AnnotationBind and the hostIP of pods, in AnnotationNamespaces, choose addresses of the host that
	// BindAddresses does not contain.
	BindAnywhere bool
	// MaxForwards limits the forwards of Services and pods; DefaultMaxForwards if it is 0. Those that come last in the order
	// of Wanted are refused.
	MaxForwards int
	// HostAddresses are the host's own, in the order of preference. They are needed for external addresses, for interface
	// names in annotations, and for the address that a Service gets where BindAddresses is an unspecified one.
	HostAddresses []HostAddress
	// PrivilegedPortOffset is added to host ports below 1024 of Services and pods; 0 leaves them.
	PrivilegedPortOffset int
	// PickFirst and PickLast bound the ports that are picked for static forwards with HostPort 0; the Default constants if
	// both are 0.
	PickFirst, PickLast int
	// Static forwards are there whatever the Services say.
	Static []Static
	// ChildIPv4 and ChildIPv6 are the node's addresses. The zero Addr means the one that RootlessKit reports, which is
	// always IPv4.
	ChildIPv4, ChildIPv6 netip.Addr
	// UnprivilegedPortStart is the host's net.ipv4.ip_unprivileged_port_start, for hints; 0 if it is not known.
	UnprivilegedPortStart int

	unfiltered bool // there is no SourceFilter: Services with source ranges stay closed
}

// LoadBalancerClass is the class of Services whose load balancer this package plays.
const LoadBalancerClass = "rootlessnode.dev/host"

// Default range of ports picked: below the node ports and what the kernel gives to clients.
const (
	DefaultPickFirst = 20000
	DefaultPickLast  = 29999
)

// DefaultMaxForwards is how many ports Services and pods may have on the host. Each costs the parent a descriptor.
const DefaultMaxForwards = 4096

// DefaultBindAddress is where Services listen unless the config says otherwise.
func DefaultBindAddress() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// Protocols of forwards, as RootlessKit names them.
const (
	TCP4 = "tcp4"
	TCP6 = "tcp6"
	UDP4 = "udp4"
	UDP6 = "udp6"
)

// Bind is a place on the host where one forward listens.
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

// Owner is on whose behalf a forward exists: a port of a Service or a pod, or a static forward.
type Owner struct {
	// Kind is one of the Kind constants.
	Kind string
	// Namespace is empty for a static forward.
	Namespace, Name string
	// UID is the Service's or the pod's.
	UID string
	// Port is the port's name, or its number if it has none.
	Port string
}

// String gives NAMESPACE/NAME/PORT for a Service, pod:NAMESPACE/NAME/PORT, static/NAME or manual/NAME.
func (o Owner) String() string {
	switch o.Kind {
	case KindService:
		return o.Namespace + "/" + o.Name + "/" + o.Port
	case KindPod:
		return "pod:" + o.Namespace + "/" + o.Name + "/" + o.Port
	}
	return o.Kind + "/" + o.Name
}

// Forward is one wanted forward.
type Forward struct {
	Bind
	// ChildIP is where to connect inside; the zero Addr means the node's address of Proto's family.
	ChildIP   netip.Addr
	ChildPort int
	Owner     Owner
	// Waiting: the port is promised but nobody is there to answer, so it must refuse connections.
	Waiting bool
	// Assigned reports that the API server assigned the host port to the Service: its node port or health check node port,
	// under its own number.
	Assigned bool
	// Created is when the Service or pod was created, in seconds; zero if that is not known.
	Created time.Time
	// Sources are the clients that may connect.
	Sources SourceRanges
}

// Refusal is a forward that is not made, although a Service or a pod asks for it.
type Refusal struct {
	Forward
	Reason, Message string
}

// Warning is something that was promised and cannot be forwarded at all.
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
