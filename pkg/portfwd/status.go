package portfwd

import (
	"slices"
	"strings"
	"time"
)

// State of one forward.
type State string

const (
	// StateOpen: the host port accepts.
	StateOpen State = "open"
	// StatePending: about to be opened or closed; with an Error, the port manager does not answer.
	StatePending State = "pending"
	// StateWaiting: closed, because no endpoint of the Service is ready; it opens when one is.
	StateWaiting State = "waiting"
	// StateFailed: refused; it is tried again by itself.
	StateFailed State = "failed"
	// StateRefused: not tried, because the place is another owner's or the config does not allow it.
	StateRefused State = "refused"
)

// PortStatus is one forward as observed.
type PortStatus struct {
	HostIP   string `json:"hostIP"`
	HostPort int    `json:"hostPort"`
	// Proto is one of TCP4, TCP6, UDP4, UDP6.
	Proto string `json:"proto"`
	// ChildIP is empty while the node's address is not known.
	ChildIP   string `json:"childIP,omitempty"`
	ChildPort int    `json:"childPort"`
	// Owner is Owner.String; Kind, Namespace, Name and Port are its parts.
	Owner     string `json:"owner"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Port      string `json:"port,omitempty"`
	State     State  `json:"state"`
	// Since is when State began.
	Since time.Time `json:"since"`
	// Foreign: somebody else made this very forward; it serves, and it will not be removed by us.
	Foreign bool `json:"foreign,omitempty"`
	// Reason, Error and Hint say why a forward is not open, or takes no connections although it is: one of the Reason constants,
	// the text, the fix.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

// Event is a change that is worth telling the owner of a forward: it is refused, or it is open after having been refused.
type Event struct {
	// Warning is false for good news.
	Warning bool
	Owner   Owner
	// Reason is one of the Reason constants.
	Reason, Message, Hint string
}

// Status returns all wanted forwards, those that were wanted until they are closed, and those that are refused, sorted by
// port, address and protocol; of one place, the refused ones come last. It may be called at any time from any goroutine.
func (f *Forwarder) Status() []PortStatus {
	type shown struct {
		bind Bind
		PortStatus
	}
	f.mu.Lock()
	all := make([]shown, 0, len(f.entries)+len(f.refusals))
	for b, e := range f.entries {
		if e.want != nil || e.err != nil || e.have != nil && e.have.ours && e.owner != (Owner{}) {
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
		Foreign: e.state == StateOpen && e.have != nil && !e.have.ours,
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
