package component

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// Component is an entry of the catalogue (package catalogue): everything that the rest of the code must know about a
// component. The zero value of a field means that the component has nothing of that kind.
type Component struct {
	// Name of the unit, its cgroup and its log.
	Name string
	// Enabled reports whether a node with this configuration has the component. nil: every node has it.
	Enabled func(*config.NodeConfig) bool
	// When reports whether the component is necessary on this host. nil: it always is.
	When func(Env) bool
	// Programs are the files of the component directory that it runs, directly or indirectly, as the manifest names
	// them.
	Programs []string
	// VersionSkew is the number of minor versions that the first program may be older than the API server. 0: not
	// limited.
	VersionSkew int
	// Image returns the image that the component needs for pods.
	Image func(*config.NodeConfig) string
	// Ports are the ports on which it listens inside the node.
	Ports func(*config.NodeConfig) []Port
	// Certificates of the embedded control plane that the component or its clients use. HostCertificates are those with
	// names of the host.
	Certificates     []Certificate
	HostCertificates func(Env) ([]Certificate, error)
	// Manifest returns the objects that the component needs in the cluster, as a YAML stream. They are applied when the
	// API server is ready.
	Manifest func(Env) ([]byte, error)
	// Bindings are the ClusterRoleBindings of Kubernetes for the component's user. A new cluster gets them some time
	// after its API server is ready.
	Bindings []string
	// Worker are the permissions that nodes need on workers with the component.
	Worker Worker

	// Needs are the units that must run before the component starts.
	Needs func(Env) []supervisor.Need
	// Render returns the program with its files. nil: the component is not a process of the node.
	Render func(Env) (Rendered, error)
	// Ready returns the readiness check. Without Render the node role waits for it without a time limit.
	Ready func(Env) func(context.Context) error
	// Live returns a liveness check that is weaker than the readiness check. nil: they are the same.
	Live func(Env) func(context.Context) error
	// Faults are known causes for which the component ends, in addition to faults of the host.
	Faults []Fault
	// PodNetwork writes the CNI configuration. The node role calls it when the component and those that filter packets
	// are ready; before that no pod gets a network.
	PodNetwork func(context.Context, Env) error

	// FiltersPackets is set if the component decides on packets of pods in user space. The node passes the packets
	// between its pods through the packet filter, and never hides the addresses of clients.
	FiltersPackets bool
	// OutlivesPods is set if pods may use the component until they have stopped.
	OutlivesPods bool
	// Optional is set if the node continues without the component.
	Optional bool
	// KeepsChildren is set if the component's child processes continue when it is restarted.
	KeepsChildren bool
	// ReadsAuthoritiesOnce are the authorities (package pki) whose renewed certificate the component reads only when it
	// starts. Components read all other certificates again by themselves.
	ReadsAuthoritiesOnce []string
	// ReadsAddressOnce is set if the component must be restarted when the address of the Node object changes.
	ReadsAddressOnce bool
}

// AllCertificates returns Certificates and HostCertificates.
func (c Component) AllCertificates(e Env) ([]Certificate, error) {
	if c.HostCertificates == nil {
		return c.Certificates, nil
	}
	host, err := c.HostCertificates(e)
	return slices.Concat(c.Certificates, host), err
}

// Port is a port on which a component listens inside the node.
type Port struct {
	Proto  string
	Number int
	// Address is the address on which it listens, for people.
	Address string
	// Field is the setting of the number, or empty if it cannot be changed.
	Field string
	// Forward is set if the node forwards the port from the host.
	Forward *Forward
}

// Forward describes the forward of a port from the host.
type Forward struct {
	// Name identifies the forward.
	Name string
	// Role is the name of the port in messages.
	Role string
	// Port is the port on the host, and Field its setting.
	Port  int
	Field string
	// Address is an address of the host. The zero value means the address of the Node object, which only nodes of
	// a cluster with several nodes have; catalogue.Forwards then sets Address and AtNode.
	Address netip.Addr
	AtNode  bool
	// Instead describes the fix if the port is in use.
	Instead string
}

// Certificate is signed by an authority, for a server, a client or both.
type Certificate struct {
	// Name is the file name below the PKI directory, without .crt and .key.
	Name string
	// Authority is the Name of the authority that signs it.
	Authority string
	// CommonName and Organizations are the user and groups in Kubernetes.
	CommonName    string
	Organizations []string
	// Server and Client are the allowed usages.
	Server, Client bool
	// DNSNames and Addresses are those of the server. Order and duplicates do not matter.
	DNSNames  []string
	Addresses []netip.Addr
}

// Worker describes what the cluster must allow to nodes that run a component with the node's certificate.
type Worker struct {
	// Reads are the resources that nodes must be allowed to list.
	Reads []kubeapi.Resource
	// Manifest is a YAML stream, with comments, of the objects that allow it.
	Manifest string
}

// Units of the node role that components need.
const (
	// UnitRoles waits for the default roles of a new cluster.
	UnitRoles = "api-roles"
	// UnitAddons applies the manifests of components.
	UnitAddons = "addons"
	// UnitJoin gets a worker's credentials.
	UnitJoin = "join"
	// UnitStaleNode prepares the Node object for the kubelet, and removes the endpoints of the last run.
	UnitStaleNode = "stale-node"
	// UnitRegistered waits for the Node object and its range of pod addresses.
	UnitRegistered = "node-registered"
)

// EmbeddedControlPlane reports whether the node runs the control plane of its cluster.
func EmbeddedControlPlane(c *config.NodeConfig) bool { return c.ControlPlane.Embedded && !c.Joins() }

// NeedReady returns the need for units that are ready.
func NeedReady(units ...string) []supervisor.Need {
	var out []supervisor.Need
	for _, name := range units {
		out = append(out, supervisor.Need{Name: name, State: supervisor.Ready})
	}
	return out
}

// ClusterUnit returns the unit that must be ready before the cluster can be used: own on a node with a control plane,
// UnitJoin on a worker.
func ClusterUnit(c *config.NodeConfig, own string) string {
	if c.Joins() {
		return UnitJoin
	}
	return own
}

// NeedCluster returns the needs of a component that uses the cluster when its manifest has been applied.
func NeedCluster(e Env) []supervisor.Need { return NeedReady(ClusterUnit(e.Config, UnitAddons)) }

// LoopbackPort returns a TCP port to which only the node itself connects. field is its setting.
func LoopbackPort(number int, field string) Port {
	return Port{Proto: "tcp", Number: number, Address: Loopback, Field: field}
}

// AnyAddress is the address of components that listen on all addresses of the node.
const AnyAddress = "0.0.0.0"

// LabelVolumes is the label of the Node object on which the volumes of the embedded control plane's node depend, with the value VolumesHere.
// The Node's name can change, this label cannot.
const (
	LabelVolumes = "rootlessnode.dev/volumes"
	VolumesHere  = "control-plane"
)

// ForwardPodNetwork is the name of the forward through which the pods of other nodes are reached.
const ForwardPodNetwork = "pod-network"

// NodeVersionSkew is the number of minor versions that the components of every node may be older than the API server,
// and ControlVersionSkew that of the control plane's components (Kubernetes version skew policy).
const (
	NodeVersionSkew    = 3
	ControlVersionSkew = 1
)

// Addresses returns the addresses of the Node object.
func (e Env) Addresses() ([]netip.Addr, error) {
	var out []netip.Addr
	for _, s := range []string{e.NodeIP, e.NodeIPv6, e.PublicIP} {
		if s == "" && len(out) > 0 {
			continue
		}
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("node address: %w", err)
		}
		out = append(out, a.Unmap())
	}
	return out, nil
}
