package portfwd

import (
	"context"
	"net/netip"
	"strconv"
)

// Service is what is needed of a Kubernetes Service to know its ports on the host.
type Service struct {
	Namespace, Name, UID string
	// Type is ClusterIP, NodePort, LoadBalancer or ExternalName.
	Type  string
	Ports []ServicePort
	// IPFamilies holds IPv4, IPv6 or both; none means IPv4.
	IPFamilies []string
}

// ServicePort is one port of a Service. Protocol is TCP (also when empty), UDP or SCTP; NodePort is 0 if there is none.
type ServicePort struct {
	Name, Protocol string
	Port, NodePort int
}

// Source tells of Services.
type Source interface {
	// Run calls sink from one goroutine until ctx ends. The first call is Replace. Nothing is removed from the host
	// before it, so a source that cannot reach its server leaves everything as it is.
	Run(ctx context.Context, sink Sink) error
}

// Sink takes what a Source tells. Its methods never block on anything but memory.
type Sink interface {
	// Replace: these are all Services there are.
	Replace(all []Service)
	// Set: this Service is new or has changed.
	Set(s Service)
	// Delete: the Service is gone; one that was never told of is no fault.
	Delete(namespace, name string)
}

// Static is a forward that the config asks for.
type Static struct {
	// Name is shown as the owner; "HOSTPORT/PROTOCOL" if empty.
	Name string
	// Protocol is tcp or udp.
	Protocol string
	// HostIP is where to listen; if it is the zero Addr, on all of Config.BindAddresses.
	HostIP netip.Addr
	// HostPort and ChildPort are 1 to 65535; ChildPort 0 means the same as HostPort.
	HostPort, ChildPort int
	// ChildIP is where to connect inside; the zero Addr means the node's address.
	ChildIP netip.Addr
}

// Config says what to forward. The zero value forwards nothing.
type Config struct {
	// NodePorts forwards the node ports of Services of type NodePort and LoadBalancer, under the same number.
	NodePorts bool
	// BindAddresses are the host's addresses on which Services listen; DefaultBindAddress if there are none. An
	// unspecified address (0.0.0.0, ::) takes the place of all others of its family.
	BindAddresses []netip.Addr
	// Static forwards are there whatever the Services say.
	Static []Static
	// ChildIPv4 and ChildIPv6 are the node's addresses. The zero Addr means the one that RootlessKit reports, which is
	// always IPv4.
	ChildIPv4, ChildIPv6 netip.Addr
	// UnprivilegedPortStart is the host's net.ipv4.ip_unprivileged_port_start, for hints; 0 if it is not known.
	UnprivilegedPortStart int
}

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

// Owner is on whose behalf a forward exists: a Service's port or a static one.
type Owner struct {
	// Namespace is empty for a static forward.
	Namespace, Name string
	// UID is the Service's.
	UID string
	// Port is the Service port's name, or its number if it has none.
	Port string
}

// String gives NAMESPACE/NAME/PORT or static/NAME.
func (o Owner) String() string {
	if o.Namespace == "" {
		return "static/" + o.Name
	}
	return o.Namespace + "/" + o.Name + "/" + o.Port
}

// Forward is one wanted forward.
type Forward struct {
	Bind
	// ChildIP is where to connect inside; the zero Addr means the node's address of Proto's family.
	ChildIP   netip.Addr
	ChildPort int
	Owner     Owner
}

// Warning is something that was promised and cannot be forwarded at all.
type Warning struct {
	Owner           Owner
	Reason, Message string
}

func portName(p ServicePort) string {
	if p.Name != "" {
		return p.Name
	}
	return strconv.Itoa(p.Port)
}
