package status

import (
	"slices"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Condition types. docs/conditions.md describes when each of them is true, and its reasons.
const (
	ConditionUplink           = "Uplink"           // the process of the network driver runs
	ConditionHostRoutes       = "HostRoutes"       // no route of the host that appeared later overlaps the node's networks
	ConditionNodeReady        = "NodeReady"        // the Ready condition of the Node object
	ConditionClusterDNS       = "ClusterDNS"       // a name of the cluster resolves through the DNS Service
	ConditionDatastore        = "Datastore"        // the cluster's data can be read and written
	ConditionCertificates     = "Certificates"     // the certificates are valid
	ConditionContainerRuntime = "ContainerRuntime" // the container runtime answers and can start pods
	ConditionForwarding       = "Forwarding"       // forwarded ports accept connections
	ConditionDisk             = "Disk"             // the file systems of the node can be written and have free space
	ConditionNodePressure     = "NodePressure"     // the kubelet lacks no memory, disk space or process ids
	ConditionAddons           = "Addons"           // the user's addons are applied
	ConditionSharedMounts     = "SharedMounts"     // the runtime, the kubelet and pods see each other's mounts
)

// Condition is a property of the node. A false OK means that the property does not hold now; a node that was ready becomes degraded
// then. Properties that this host cannot provide at all are in Status.Warnings instead.
type Condition struct {
	// Type is one of the Condition constants.
	Type string `json:"type"`
	OK   bool   `json:"ok"`
	// Warning is set if OK is true, but the property will not hold for long or holds only in part. It does not degrade the node.
	Warning bool `json:"warning,omitempty"`
	// Pending is set if OK is false because the first result is still expected. The node is starting then.
	Pending bool `json:"pending,omitempty"`
	// Reason is a CamelCase word, Message a text for people.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Hint is how to fix a false condition or a warning, in plain words. Steps is the same hint as data. Status.Render replaces the
	// words. SetCondition sets Hint from Steps.
	Hint  string       `json:"hint,omitempty"`
	Steps errdefs.Hint `json:"steps,omitempty"`
	// Since is the time of the last change of OK.
	Since time.Time `json:"since"`
}

// same reports whether a and b have the same content apart from Since.
func (c Condition) same(b Condition) bool {
	return c.word() == b.word() && c.Reason == b.Reason && c.Message == b.Message && c.Hint == b.Hint
}

// word returns the state of the condition in one word for events.
func (c Condition) word() string {
	switch {
	case c.OK && c.Warning:
		return "warning"
	case c.OK:
		return "met"
	case c.Pending:
		return "pending"
	}
	return "not met"
}

// SetCondition replaces the condition with the type of c, or appends c. An empty Since is set to the time of the last change of OK. A
// change between true, true with a warning, pending and false publishes an event of NodeEvents/TYPE. A new condition publishes one if it
// is false or has a warning. An unchanged condition has no effect.
func (h *Hub) SetCondition(c Condition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(c.Steps) > 0 {
		c.Hint = c.Steps.String()
	}
	old := h.cur.Condition(c.Type)
	if old != nil && old.same(c) {
		return
	}
	if c.Since.IsZero() {
		c.Since = h.now()
		if old != nil && old.OK == c.OK {
			c.Since = old.Since
		}
	}
	if old != nil && old.word() != c.word() || old == nil && (c.Warning || !c.OK && !c.Pending) {
		h.publish(conditionEvent(c, old))
	}
	h.update(func(s *Status) {
		if p := s.Condition(c.Type); p != nil {
			*p = c
			return
		}
		s.Conditions = append(s.Conditions, c)
	})
}

// RemoveCondition removes the condition of type typ, because it does not apply to this node any more.
func (h *Hub) RemoveCondition(typ string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cur.Condition(typ) == nil {
		return
	}
	h.update(func(s *Status) {
		s.Conditions = slices.DeleteFunc(s.Conditions, func(c Condition) bool { return c.Type == typ })
	})
}

// conditionEvent returns the event for the change from old, which is nil for a new condition, to c.
func conditionEvent(c Condition, old *Condition) Event {
	e := Event{Component: NodeEvents + "/" + c.Type, To: c.word(), Reason: c.Message, Level: LevelInfo}
	if old != nil {
		e.From = old.word()
	}
	if e.Reason == "" {
		e.Reason = c.Reason
	}
	// A Node object that is not Ready is normal during the start.
	if c.Warning || !c.OK && !c.Pending && (old != nil || c.Type != ConditionNodeReady) {
		e.Level = LevelWarning
	}
	return e
}

// Condition returns a pointer to the condition of type typ in s, or nil.
func (s *Status) Condition(typ string) *Condition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == typ {
			return &s.Conditions[i]
		}
	}
	return nil
}

// Render replaces the plain words in the hints of conditions by those of the caller, and removes their Steps.
func (s *Status) Render(words func(errdefs.Step) string) {
	for i := range s.Conditions {
		if c := &s.Conditions[i]; len(c.Steps) > 0 {
			c.Hint, c.Steps = c.Steps.Render(words), nil
		}
	}
	if s.Failure != nil {
		s.Failure.Render(words)
	}
}
