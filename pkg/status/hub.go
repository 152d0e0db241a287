package status

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// DefaultKeep is how many events a Hub keeps for late and slow readers.
const DefaultKeep = 1024

// Options of a Hub.
type Options struct {
	// Keep is how many events are kept. Default DefaultKeep.
	Keep int
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Hub holds the one picture of a node and its events. All methods may be called from any goroutine; none waits for a
// reader. Runs in: the node role; the parent may use one of its own.
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

// NewHub returns a hub that starts with the picture initial. Its State is derived at once, without an event.
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

// Update changes the picture with f, which must not keep its argument nor call the hub. State, Reason, Since and
// ResourceVersion are the hub's; what f does to them is undone. A change of the node's state makes one event.
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

// SetFailed makes the node failed for the given reason. The first reason stays.
func (h *Hub) SetFailed(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failure == "" {
		h.failure = orUnknown(reason)
	}
	h.update(func(*Status) {})
}

// SetStopping makes the node stopping for the given reason. The first reason stays.
func (h *Hub) SetStopping(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping == "" {
		h.stopping = orUnknown(reason)
	}
	h.update(func(*Status) {})
}

// SetStopped makes the node stopped, or failed where SetFailed came before.
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

// Snapshot returns a copy of the picture.
func (h *Hub) Snapshot() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return clone(h.cur)
}

// Changed returns a channel that is closed at the next change. Take it before Snapshot and no change is missed.
func (h *Hub) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// Wait blocks until the picture's ResourceVersion differs from since and returns it. It returns the picture as it is
// when ctx ends (with ctx's error) or the hub is closed (without one).
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

// Close ends every subscription once it has read the events that are kept, and every Wait. The hub stays readable.
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

// setTiming notes the first time only.
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
