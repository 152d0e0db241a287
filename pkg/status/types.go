// Package status is the picture of a node: the states of its components, the conditions it promises, the events that
// led there, their JSON, and the unix socket that serves them.
//
// One Hub belongs to the node role; everything else asks it, in process or through a Client. The package starts and
// stops nothing: what `down` and restarts ask for is handed to a Control.
//
// Runs in: parent, child or either; Serve runs in the child (node role).
package status

import (
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// ComponentState is where a component stands.
//
//	waiting -> starting -> running -> ready -> stopping -> stopped
//	              ^           |         |
//	              +- backoff <+---------+        failed: given up, done: a task that ended well
type ComponentState string

// Component states.
const (
	Waiting  ComponentState = "waiting"  // its needs are not there yet; WaitingFor names them
	Starting ComponentState = "starting" // its process is being made
	Running  ComponentState = "running"  // its process lives, it was not usable yet
	Ready    ComponentState = "ready"    // its probe says that it is usable
	Backoff  ComponentState = "backoff"  // it ended by itself and will be started again
	Stopping ComponentState = "stopping" // it was told to end
	Stopped  ComponentState = "stopped"  // it ended because it was told to
	Failed   ComponentState = "failed"   // it will not be started again
	Done     ComponentState = "done"     // a task with an end, ended well
)

// State is where the node stands. Derive is the only function that makes one.
type State string

// Node states.
const (
	NodeStarting State = "starting"
	NodeReady    State = "ready"
	NodeDegraded State = "degraded" // was ready, is up, but something promised is missing
	NodeStopping State = "stopping"
	NodeStopped  State = "stopped"
	NodeFailed   State = "failed"
)

// Condition types.
const (
	ConditionUplink       = "Uplink"
	ConditionAPIReachable = "APIReachable"
	ConditionNodeReady    = "NodeReady" // the Ready condition of the Node object
	ConditionHostMounts   = "HostMounts"
	ConditionSharedMounts = "SharedMounts"
	ConditionDelegation   = "Delegation"
	ConditionPorts        = "Ports"
)

// Port states.
const (
	PortPending   = "pending"
	PortForwarded = "forwarded"
	PortFailed    = "failed"
	PortWaiting   = "waiting" // closed, because no endpoint of the Service is ready
	// PortRefused: closed, because another owner has the port or the config does not allow it. The node is not degraded by it,
	// since every user of the cluster can ask for such a port.
	PortRefused = "refused"
)

// NodeEvents is the Component of events about the node itself.
const NodeEvents = "node"

// Event levels.
const (
	LevelInfo    = "info"
	LevelWarning = "warning"
	LevelError   = "error"
)

// NodeReadyTiming is the key of Status.Timings for the node's own first ready.
const NodeReadyTiming = "node-ready"

// Component is one supervised program.
type Component struct {
	Name  string         `json:"name"`
	State ComponentState `json:"state"`
	Since time.Time      `json:"since"`
	// PID as the node's pid namespace numbers it; 0 without a process.
	PID      int    `json:"pid,omitempty"`
	Restarts int    `json:"restarts,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// WaitingFor names the needs that are missing while the state is waiting.
	WaitingFor []string `json:"waitingFor,omitempty"`
	// Log is its log file, a path on the host.
	Log string `json:"log,omitempty"`
}

// Condition is something that the node promises. OK false means that the promise is broken and, once the node was
// ready, makes it degraded; what merely cannot be had on this host belongs in Status.Warnings.
type Condition struct {
	Type    string    `json:"type"`
	OK      bool      `json:"ok"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since"`
}

// Port is one forward, wanted or bound.
type Port struct {
	HostIP   string `json:"hostIP"`
	HostPort int    `json:"hostPort"`
	Proto    string `json:"proto"`
	NodePort int    `json:"nodePort"`
	// Owner is who wants it: static/NAME, manual/FORWARD, NAMESPACE/NAME/PORT of a Service or pod:NAMESPACE/NAME/PORT.
	// Kind (static, manual, Service, Pod), Namespace, Name and Port are its parts.
	Owner     string    `json:"owner,omitempty"`
	Kind      string    `json:"kind,omitempty"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	Port      string    `json:"port,omitempty"`
	State     string    `json:"state"`
	Since     time.Time `json:"since,omitzero"`
	// Reason is one word for why it is not forwarded; Error says more, and Hint is the way out.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

// PortCounts says how many forwards are in which state.
type PortCounts struct {
	Forwarded int `json:"forwarded"`
	Waiting   int `json:"waiting"`
	Pending   int `json:"pending"`
	Failed    int `json:"failed"`
	Refused   int `json:"refused"`
}

// CountPorts counts.
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

// Network is the node's uplink.
type Network struct {
	Driver    string `json:"driver,omitempty"`
	Interface string `json:"interface,omitempty"`
	Address   string `json:"address,omitempty"`
	// AddressIPv6 is there with network.ipv6.
	AddressIPv6 string   `json:"addressIPv6,omitempty"`
	MTU         int      `json:"mtu,omitempty"`
	DNS         []string `json:"dns,omitempty"`
	// NodeAddress is the host's address by which other nodes reach this one; empty where there are none.
	NodeAddress string `json:"nodeAddress,omitempty"`
	// PortDriver forwards ports of the host; PortDriverReason is why it was chosen.
	PortDriver       string `json:"portDriver,omitempty"`
	PortDriverReason string `json:"portDriverReason,omitempty"`
}

// Cgroup is the node's subtree.
type Cgroup struct {
	// Path on the host, from the root of the cgroup2 file system.
	Path        string   `json:"path,omitempty"`
	Controllers []string `json:"controllers,omitempty"`
	// Unenforced are the controllers whose limits pods ask for in vain.
	Unenforced []string `json:"unenforced,omitempty"`
	// Ceiling is what the whole node may use, and UnenforcedSettings are the fields of the config that do nothing here.
	Ceiling            layout.Limits `json:"ceiling,omitzero"`
	UnenforcedSettings []string      `json:"unenforcedSettings,omitempty"`
}

// Mounts is what the node promises of mounts, each tried or read and not assumed.
type Mounts struct {
	// HostToNode (1): what the host mounts reaches the runtime, the kubelet and HostToContainer volumes.
	HostToNode bool `json:"hostToNode"`
	// Shared (2): what the runtime, the kubelet and Bidirectional volumes mount is seen by each other and by
	// HostToContainer volumes.
	Shared bool `json:"shared"`
	// NodeToHost (3): the host sees those mounts too. In a rootless node it never does.
	NodeToHost bool `json:"nodeToHost"`
	// Reasons say, for each of (1) and (2) that does not hold, why; they begin with its number. Hint is the way out.
	Reasons []string `json:"reasons,omitempty"`
	Hint    string   `json:"hint,omitempty"`
}

// Text is the three answers in one line: "1 yes, 2 yes, 3 no".
func (m *Mounts) Text() string {
	word := map[bool]string{true: "yes", false: "no"}
	return "1 " + word[m.HostToNode] + ", 2 " + word[m.Shared] + ", 3 " + word[m.NodeToHost]
}

// Status is the picture now. Times are the node's own clock.
type Status struct {
	// ResourceVersion differs between any two pictures of one run that differ.
	ResourceVersion uint64    `json:"resourceVersion"`
	Name            string    `json:"name"`
	NodeName        string    `json:"nodeName,omitempty"`
	State           State     `json:"state"`
	Reason          string    `json:"reason,omitempty"`
	Since           time.Time `json:"since,omitzero"`
	// StartedAt is when the parent began.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// Version of rootlessnode and of Kubernetes.
	Version    string `json:"version,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`
	// ParentPID and ChildPID as the host numbers them.
	ParentPID  int         `json:"parentPID,omitempty"`
	ChildPID   int         `json:"childPID,omitempty"`
	Components []Component `json:"components,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
	Network    Network     `json:"network,omitzero"`
	// APIServer is the URL for the host.
	APIServer string `json:"apiServer,omitempty"`
	// Kubeconfig, DataDir and RuntimeDir are paths on the host.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	DataDir    string `json:"dataDir,omitempty"`
	RuntimeDir string `json:"runtimeDir,omitempty"`
	Cgroup     Cgroup `json:"cgroup,omitzero"`
	// Mounts is nil until the guarantees were tried for the first time.
	Mounts *Mounts `json:"mounts,omitempty"`
	Ports  []Port  `json:"ports,omitempty"`
	// PortCounts counts Ports.
	PortCounts PortCounts `json:"portCounts,omitzero"`
	Warnings   []string   `json:"warnings,omitempty"`
	// Timings: seconds from StartedAt until each component, and NodeReadyTiming the node, was first ready.
	Timings map[string]float64 `json:"timings,omitempty"`
}

// WasReady tells whether the node has been ready in this run.
func (s *Status) WasReady() bool { _, ok := s.Timings[NodeReadyTiming]; return ok }

// Component returns the component of that name, nil without one. It points into s.
func (s *Status) Component(name string) *Component {
	for i := range s.Components {
		if s.Components[i].Name == name {
			return &s.Components[i]
		}
	}
	return nil
}

// Condition returns the condition of that type, nil without one. It points into s.
func (s *Status) Condition(typ string) *Condition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == typ {
			return &s.Conditions[i]
		}
	}
	return nil
}

// Event is one transition with its reason.
type Event struct {
	// Seq counts the events of one run from 1. A gap in it is a gap in what the reader was given; see Lost.
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	// Component is whose transition it is: a component's name, NodeEvents, NodeEvents/TYPE for a condition, or
	// port/ADDRESS for a forward.
	Component string `json:"component"`
	From      string `json:"from,omitempty"`
	To        string `json:"to,omitempty"`
	Reason    string `json:"reason,omitempty"`
	// Tail is the last output of a component that ended by itself.
	Tail  []string `json:"tail,omitempty"`
	Level string   `json:"level,omitempty"`
	// Lost, in an event that carries nothing else, is how many events the reader was too slow for.
	Lost uint64 `json:"lost,omitempty"`
}
