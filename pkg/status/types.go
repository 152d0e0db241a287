// Package status describes the state of a node: the states of its components, its conditions, its forwarded ports, and the events that
// led to them. It defines their JSON and serves them on a unix socket.
//
// The node role has the Hub, which holds the Status and the events. Serve serves the hub on the node's status socket, and a Client
// reads from it:
//
//	c := status.NewClient(path)
//	defer c.Close()
//	s, err := c.Status(ctx)
//
// Requests that change the node, such as a stop or a restart, are passed to a Control. The package itself starts and stops no
// process.
//
// Runs in: parent, child or either; Serve runs in the child (node role).
package status

import (
	"time"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// ComponentState is the state of a component.
//
//	waiting -> starting -> running -> ready -> stopping -> stopped
//	              ^           |         |
//	              +- backoff <+---------+        failed: not restarted, done: a task that succeeded
type ComponentState string

// Component states.
const (
	Waiting  ComponentState = "waiting"  // waits for its needs, which WaitingFor names
	Starting ComponentState = "starting" // its process is being started
	Running  ComponentState = "running"  // its process is running, but the component has not been ready yet
	Ready    ComponentState = "ready"    // its probe succeeds
	Backoff  ComponentState = "backoff"  // it ended unexpectedly and will be restarted
	Stopping ComponentState = "stopping" // it is being stopped
	Stopped  ComponentState = "stopped"  // it was stopped
	Failed   ComponentState = "failed"   // it failed and will not be restarted
	Done     ComponentState = "done"     // a one-time task that succeeded
)

// State is the state of a node. Derive determines it.
type State string

// Node states.
const (
	NodeStarting State = "starting"
	NodeReady    State = "ready"
	NodeDegraded State = "degraded" // usable or ready before, but a component, a condition or a port is not as configured
	NodeStopping State = "stopping"
	NodeStopped  State = "stopped"
	NodeFailed   State = "failed" // a component failed permanently, or the node ended with an error
)

// Port states.
const (
	PortPending   = "pending"
	PortForwarded = "forwarded"
	PortFailed    = "failed"
	PortWaiting   = "waiting" // closed because no endpoint of the Service is ready
	// PortRefused is the state of a port that is closed because another owner or another program of the host has it, or because the
	// configuration or the host does not allow it. It does not degrade the node, because every user of the cluster can request such
	// a port.
	PortRefused = "refused"
)

// NodeEvents is the value of Event.Component for events of the node itself.
const NodeEvents = "node"

// Event levels.
const (
	LevelInfo    = "info"
	LevelWarning = "warning"
	LevelError   = "error"
)

// NodeReadyTiming is the key of Status.Timings for the time when the node was first ready.
const NodeReadyTiming = "node-ready"

// Component is the status of a supervised program.
type Component struct {
	Name  string         `json:"name"`
	State ComponentState `json:"state"`
	// Since is the time of the last change of State.
	Since time.Time `json:"since"`
	// PID is the pid in the node's pid namespace; 0 if there is no process.
	PID      int    `json:"pid,omitempty"`
	Restarts int    `json:"restarts,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// WaitingFor names the unmet needs while State is Waiting.
	WaitingFor []string `json:"waitingFor,omitempty"`
	// Log is the path of the log file on the host.
	Log string `json:"log,omitempty"`
}

// IsProgram reports whether the component is a program of the node. Others are steps of the node itself.
func (c *Component) IsProgram() bool { return c.Log != "" }

// Port is a port of the host that is forwarded to the node, or should be.
type Port struct {
	HostIP   string `json:"hostIP"`
	HostPort int    `json:"hostPort"`
	Proto    string `json:"proto"`
	NodePort int    `json:"nodePort"`
	// Owner is the source of the forward: static/NAME, manual/FORWARD, NAMESPACE/NAME/PORT for a Service or
	// pod:NAMESPACE/NAME/PORT. Kind (static, manual, Service, Pod), Namespace, Name and Port are its parts.
	Owner     string `json:"owner,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Port      string `json:"port,omitempty"`
	// State is one of the Port constants, such as PortForwarded.
	State string    `json:"state"`
	Since time.Time `json:"since,omitzero"`
	// Reason is one word for the cause if the port is not forwarded, Error a description of it, and Hint the fix.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

// PortCounts has the number of ports in each state.
type PortCounts struct {
	Forwarded int `json:"forwarded"`
	Waiting   int `json:"waiting"`
	Pending   int `json:"pending"`
	Failed    int `json:"failed"`
	Refused   int `json:"refused"`
}

// CountPorts counts ports by their state.
func CountPorts(ports []Port) PortCounts {
	var n PortCounts
	for _, p := range ports {
		switch p.State {
		case PortForwarded:
			n.Forwarded++
		case PortWaiting:
			n.Waiting++
		case PortFailed:
			n.Failed++
		case PortRefused:
			n.Refused++
		default:
			n.Pending++
		}
	}
	return n
}

// Network describes the node's uplink.
type Network struct {
	Driver    string `json:"driver,omitempty"`
	Interface string `json:"interface,omitempty"`
	Address   string `json:"address,omitempty"`
	// AddressIPv6 is set if network.ipv6 is enabled.
	AddressIPv6 string `json:"addressIPv6,omitempty"`
	// MTU is in bytes.
	MTU int      `json:"mtu,omitempty"`
	DNS []string `json:"dns,omitempty"`
	// NodeAddress is the address of the host by which other nodes reach this one; empty in a single-node cluster.
	NodeAddress string `json:"nodeAddress,omitempty"`
	// PortDriver is the driver that forwards ports of the host, and PortDriverReason is the reason for its choice.
	PortDriver       string `json:"portDriver,omitempty"`
	PortDriverReason string `json:"portDriverReason,omitempty"`
}

// Cgroup describes the node's cgroup subtree.
type Cgroup struct {
	// Path is the path on the host, relative to the root of the cgroup2 file system.
	Path string `json:"path,omitempty"`
	// Controllers are the enabled cgroup controllers.
	Controllers []string `json:"controllers,omitempty"`
	// Unenforced are the controllers that are not available; limits of pods that need them have no effect.
	Unenforced []string `json:"unenforced,omitempty"`
	// Ceiling has the limits for the whole node. UnenforcedSettings are the fields of the config that have no effect on this host.
	Ceiling            Limits   `json:"ceiling,omitzero"`
	UnenforcedSettings []string `json:"unenforcedSettings,omitempty"`
}

// Mounts describes the mount propagation between host and node. The node tests each property; it does not assume any.
type Mounts struct {
	// HostToNode is property 1: mounts of the host reach the runtime, the kubelet and HostToContainer volumes.
	HostToNode bool `json:"hostToNode"`
	// Shared is property 2: the runtime, the kubelet and Bidirectional volumes see each other's mounts, and HostToContainer volumes
	// see them too.
	Shared bool `json:"shared"`
	// NodeToHost is property 3: the host sees those mounts. It is always false in a rootless node.
	NodeToHost bool `json:"nodeToHost"`
	// Reasons has the cause for each of the properties 1 and 2 that does not hold, and begins with its number. Hint is the fix.
	Reasons []string `json:"reasons,omitempty"`
	Hint    string   `json:"hint,omitempty"`
}

// Text returns the three properties in one line: "1 yes, 2 yes, 3 no".
func (m *Mounts) Text() string {
	word := map[bool]string{true: "yes", false: "no"}
	return "1 " + word[m.HostToNode] + ", 2 " + word[m.Shared] + ", 3 " + word[m.NodeToHost]
}

// Status is the status of a node at one time.
type Status struct {
	// ResourceVersion changes with every change of the status during one run of the node.
	ResourceVersion uint64 `json:"resourceVersion"`
	// Name is the name of the node for rootlessnode, NodeName that of its Node object.
	Name     string `json:"name"`
	NodeName string `json:"nodeName,omitempty"`
	// State is the node's state, Reason the cause of it and Since the time of the last change of State.
	State  State     `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	// Failure is the error with which the last run ended, with its hints and a log excerpt, if State is NodeFailed. Otherwise it is the
	// reason why a running node does not respond.
	Failure *errdefs.Report `json:"failure,omitempty"`
	// StartedAt is when the parent process started.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// EndsAt is when the node stops by itself (up --ttl); zero: it does not.
	EndsAt time.Time `json:"endsAt,omitzero"`
	// Version is the version of rootlessnode, Kubernetes that of Kubernetes.
	Version    string `json:"version,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`
	// ParentPID and ChildPID are pids in the host's pid namespace.
	ParentPID  int         `json:"parentPID,omitempty"`
	ChildPID   int         `json:"childPID,omitempty"`
	Components []Component `json:"components,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
	Network    Network     `json:"network,omitzero"`
	// APIServer is the URL of the API server for use on the host.
	APIServer string `json:"apiServer,omitempty"`
	// Kubeconfig, DataDir and RuntimeDir are paths on the host.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	DataDir    string `json:"dataDir,omitempty"`
	RuntimeDir string `json:"runtimeDir,omitempty"`
	Cgroup     Cgroup `json:"cgroup,omitzero"`
	// Mounts is nil until mount propagation was tested for the first time.
	Mounts *Mounts `json:"mounts,omitempty"`
	Ports  []Port  `json:"ports,omitempty"`
	// PortCounts has the number of Ports by state.
	PortCounts PortCounts `json:"portCounts,omitzero"`
	Warnings   []string   `json:"warnings,omitempty"`
	// Restored describes the return of the pods that were ready at the end of the last run. It is nil until they are known.
	Restored *Restored `json:"restored,omitempty"`
	// Timings has the seconds from StartedAt until each component, and for NodeReadyTiming the node, was first ready.
	Timings map[string]float64 `json:"timings,omitempty"`
}

// Restored describes which pods of the last run are back.
type Restored struct {
	// Pods is the number of pods that were ready at the end of the last run.
	Pods int `json:"pods"`
	// Waiting lists those that are not ready yet, as NAMESPACE/NAME, and then "port ADDRESS" for each forwarded port of their Services
	// that does not accept connections yet.
	Waiting []string `json:"waiting,omitempty"`
	// Done is set when nothing is waited for any more. Later changes of the pods have no effect.
	Done bool `json:"done"`
}

// WasReady reports whether the node has been ready or degraded in this run.
func (s *Status) WasReady() bool { _, ok := s.Timings[NodeReadyTiming]; return ok }

// Component returns a pointer to the component called name in s, or nil.
func (s *Status) Component(name string) *Component {
	for i := range s.Components {
		if s.Components[i].Name == name {
			return &s.Components[i]
		}
	}
	return nil
}

// Event is a change of state with its reason.
type Event struct {
	// Seq numbers the events of one run from 1. A gap means that the reader missed events; see Lost.
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	// Component is the subject of the event: the name of a component, NodeEvents, NodeEvents/TYPE for a condition, or
	// port/ADDRESS for a forwarded port.
	Component string `json:"component"`
	// From and To are the states before and after.
	From   string `json:"from,omitempty"`
	To     string `json:"to,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Tail has the last lines of output of a component that ended unexpectedly.
	Tail []string `json:"tail,omitempty"`
	// Level is LevelInfo, LevelWarning or LevelError.
	Level string `json:"level,omitempty"`
	// Lost is the number of events that a slow reader missed. Such an event has no other content.
	Lost uint64 `json:"lost,omitempty"`
}

// Limits are the limits of a cgroup. 0 means no limit.
type Limits = layout.Limits
