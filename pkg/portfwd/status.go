package portfwd

import (
	"slices"
	"strings"
	"time"
)

// State of one forward.
type State string

const (
	// StateOpen means that the host port accepts connections.
	StateOpen State = "open"
	// StatePending means that the port is about to be opened or closed. With an Error, the port manager does not respond.
	StatePending State = "pending"
	// StateWaiting means that the port is closed because the Service has no ready endpoint. It opens when there is one.
	StateWaiting State = "waiting"
	// StateFailed means that opening the port failed. It is retried automatically.
	StateFailed State = "failed"
	// StateRefused means that no attempt is made, because the port belongs to another owner or the config does not allow it.
	StateRefused State = "refused"
)

// PortStatus is the observed state of one forward.
type PortStatus struct {
	HostIP   string `json:"hostIP"`
	HostPort int    `json:"hostPort"`
	// Proto is one of TCP4, TCP6, UDP4, UDP6.
	Proto string `json:"proto"`
	// ChildIP is empty while the node's address is unknown.
	ChildIP   string `json:"childIP,omitempty"`
	ChildPort int    `json:"childPort"`
	// Owner is the result of Owner.String; Kind, Namespace, Name and Port are its parts.
	Owner     string `json:"owner"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Port      string `json:"port,omitempty"`
	State     State  `json:"state"`
	// Since is the time when State began.
	Since time.Time `json:"since"`
	// Foreign reports whether an identical forward was added through RootlessKit's API. It serves the port and is never removed
	// by the Forwarder.
	Foreign bool `json:"foreign,omitempty"`
	// Reason, Error and Hint report why a forward is not open, or does not accept connections although it is open: one of
	// the Reason constants, the message and the fix.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

// RefusedByHost reports whether the host does not permit a port of a Service or a pod, or another program has it. Such a port is
// retried, and it is not a fault of the node, because any user of the cluster can request one.
func (p PortStatus) RefusedByHost() bool {
	return p.State == StateFailed && (p.Kind == KindService || p.Kind == KindPod) &&
		slices.Contains([]string{ReasonDenied, ReasonInUse, ReasonAddress, ReasonProtocol, ReasonFamily}, p.Reason)
}

// Event is a change to report to the owner of a forward: a failure or a refusal, or its end.
type Event struct {
	// Warning is false if the forward works again.
	Warning bool
	Owner   Owner
	// Reason is one of the Reason constants.
	Reason, Message, Hint string
}

// Status returns the wanted forwards, forwards that are not wanted any more until they are closed, and the refused ones,
// sorted by port, address and protocol. Refused forwards of the same place come last. It is safe for concurrent use.
func (f *Forwarder) Status() []PortStatus {
	type shown struct {
		bind Bind
		PortStatus
	}
	f.mu.Lock()
	all := make([]shown, 0, len(f.entries)+len(f.refusals))
	for b, e := range f.entries {
		if e.want != nil || e.err != nil || e.have != nil && e.have.owned && e.owner != (Owner{}) {
			all = append(all, shown{b, e.status()})
		}
	}
	for _, r := range f.refusals {
		all = append(all, shown{r.Bind, r.status()})
	}
	f.mu.Unlock()
	slices.SortStableFunc(all, func(a, b shown) int { return compareBinds(a.bind, b.bind) })
	list := make([]PortStatus, len(all))
	for i, s := range all {
		list[i] = s.PortStatus
	}
	return list
}

func (r refusal) status() PortStatus {
	return PortStatus{
		HostIP: r.IP.String(), HostPort: r.Port, Proto: r.Proto, ChildPort: r.ChildPort,
		Owner: r.Owner.String(), Kind: r.Owner.Kind, Namespace: r.Owner.Namespace, Name: r.Owner.Name, Port: r.Owner.Port,
		State: StateRefused, Since: r.since, Reason: r.Reason, Error: r.Message,
	}
}

func (e *entry) status() PortStatus {
	s := PortStatus{
		HostIP: e.bind.IP.String(), HostPort: e.bind.Port, Proto: e.bind.Proto,
		ChildIP: e.spec.ChildIP, ChildPort: e.spec.ChildPort,
		Owner: e.owner.String(), Kind: e.owner.Kind, Namespace: e.owner.Namespace, Name: e.owner.Name, Port: e.owner.Port, State: e.state, Since: e.since,
		Foreign: e.state == StateOpen && e.have != nil && !e.have.owned,
		Reason:  e.reason, Hint: e.hint,
	}
	if e.state == StateOpen && e.trouble != (Trouble{}) {
		s.Reason, s.Error, s.Hint = e.trouble.Reason, e.trouble.Message, hintOf(e.trouble.Reason, e.bind, Config{}, "")
	}
	if e.want != nil {
		s.ChildPort = e.want.ChildPort
	}
	if e.err != nil {
		s.Error = strings.TrimSpace(e.err.Error())
	}
	return s
}
