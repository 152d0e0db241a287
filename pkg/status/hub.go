package status

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// DefaultKeep is the default number of events that a Hub keeps.
const DefaultKeep = 1024

// Options are options for NewHub. The zero value is valid.
type Options struct {
	// Keep is the number of events that the hub keeps. Default: DefaultKeep.
	Keep int
	// Now returns the current time. Default: time.Now.
	Now func() time.Time
}

// Hub holds the status of a node and its events. Its methods are safe for concurrent use and do not block on readers.
//
// Runs in: the node role; the parent may have a hub of its own.
type Hub struct {
	now func() time.Time

	mu       sync.Mutex
	cur      Status
	changed  chan struct{} // closed at the next change of cur
	events   ring
	arrived  chan struct{} // closed at the next event
	closed   bool
	failure  string
	stopping string
	stopped  bool
}

// NewHub returns a hub with the given initial status. It derives State immediately and without an event.
func NewHub(initial Status, o Options) *Hub {
	if o.Keep <= 0 {
		o.Keep = DefaultKeep
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	h := &Hub{now: o.Now, cur: clone(initial), changed: make(chan struct{}), arrived: make(chan struct{}), events: ring{keep: o.Keep}}
	if h.cur.StartedAt.IsZero() {
		h.cur.StartedAt = o.Now()
	}
	h.cur.ResourceVersion = 1
	h.cur.State, h.cur.Reason = h.derive(&h.cur)
	h.cur.Since = o.Now()
	return h
}

// Update changes the status with f, which must not keep its argument and must not call the hub. The hub sets State, Reason, Since and
// ResourceVersion itself and discards changes that f makes to them. A change of the node's state publishes one event.
func (h *Hub) Update(f func(*Status)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.update(f)
}

func (h *Hub) update(f func(*Status)) {
	next := clone(h.cur)
	f(&next)
	next.ResourceVersion = h.cur.ResourceVersion + 1
	next.State, next.Reason = h.derive(&next)
	next.Since = h.cur.Since
	if next.State != h.cur.State {
		next.Since = h.now()
	}
	if (next.State == NodeReady || next.State == NodeDegraded) && !next.WasReady() {
		setTiming(&next, NodeReadyTiming, h.now())
	}
	from := h.cur.State
	h.cur = next
	close(h.changed)
	h.changed = make(chan struct{})
	if next.State != from {
		h.publish(Event{Component: NodeEvents, From: string(from), To: string(next.State), Reason: next.Reason, Level: stateLevel(next.State)})
	}
}

func (h *Hub) derive(s *Status) (State, string) {
	return Derive(DeriveInput{
		Components: s.Components, Conditions: s.Conditions, Ports: s.Ports,
		WasReady: s.WasReady(), Failure: h.failure, Stopping: h.stopping, Stopped: h.stopped,
	})
}

func stateLevel(s State) string {
	switch s {
	case NodeFailed:
		return LevelError
	case NodeDegraded:
		return LevelWarning
	}
	return LevelInfo
}

// SetFailed sets the node's state to failed with the given reason. Later calls do not change the reason.
func (h *Hub) SetFailed(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failure == "" {
		h.failure = orUnknown(reason)
	}
	h.update(func(*Status) {})
}

// SetStopping sets the node's state to stopping with the given reason. Later calls do not change the reason.
func (h *Hub) SetStopping(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping == "" {
		h.stopping = orUnknown(reason)
	}
	h.update(func(*Status) {})
}

// SetStopped sets the node's state to stopped, or to failed if SetFailed was called before.
func (h *Hub) SetStopped() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	h.update(func(*Status) {})
}

func orUnknown(reason string) string {
	if reason == "" {
		return "no reason given"
	}
	return reason
}

// Snapshot returns a copy of the current status.
func (h *Hub) Snapshot() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return clone(h.cur)
}

// Changed returns a channel that is closed at the next change of the status. Call Changed before Snapshot so that no change is missed.
func (h *Hub) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// Wait blocks until the status's ResourceVersion differs from since, and returns the status. It also returns the current status when
// ctx ends (with the error of ctx) or the hub is closed (with a nil error).
func (h *Hub) Wait(ctx context.Context, since uint64) (Status, error) {
	for {
		h.mu.Lock()
		s, changed, closed := h.cur, h.changed, h.closed
		h.mu.Unlock()
		if s.ResourceVersion != since || closed {
			return clone(s), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return clone(s), ctx.Err()
		}
	}
}

// Close ends every Wait, and every subscription after it has received the kept events. The hub can still be read.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.closed = true
	close(h.changed)
	h.changed = make(chan struct{})
	close(h.arrived)
	h.arrived = make(chan struct{})
}

// setTiming records the seconds since the start, unless the key has a value already.
func setTiming(s *Status, key string, at time.Time) {
	if _, ok := s.Timings[key]; ok {
		return
	}
	if s.Timings == nil {
		s.Timings = map[string]float64{}
	}
	s.Timings[key] = at.Sub(s.StartedAt).Seconds()
}

func clone(s Status) Status {
	s.Components = slices.Clone(s.Components)
	for i := range s.Components {
		s.Components[i].WaitingFor = slices.Clone(s.Components[i].WaitingFor)
	}
	s.Conditions = slices.Clone(s.Conditions)
	s.Ports = slices.Clone(s.Ports)
	s.Warnings = slices.Clone(s.Warnings)
	s.Network.DNS = slices.Clone(s.Network.DNS)
	s.Cgroup.Controllers = slices.Clone(s.Cgroup.Controllers)
	s.Cgroup.Unenforced = slices.Clone(s.Cgroup.Unenforced)
	s.Cgroup.UnenforcedSettings = slices.Clone(s.Cgroup.UnenforcedSettings)
	s.Timings = maps.Clone(s.Timings)
	if s.Mounts != nil {
		m := *s.Mounts
		m.Reasons = slices.Clone(m.Reasons)
		s.Mounts = &m
	}
	return s
}
