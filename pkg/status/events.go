package status

import "context"

// ring is a ring buffer of the newest events.
type ring struct {
	keep int
	last uint64 // Seq of the newest event
	buf  []Event
}

func (r *ring) add(e Event) {
	r.last++
	e.Seq = r.last
	if len(r.buf) < r.keep {
		r.buf = append(r.buf, e)
		return
	}
	r.buf[int((e.Seq-1)%uint64(r.keep))] = e
}

// oldest returns the Seq of the oldest event in the buffer, or last+1 if the buffer is empty.
func (r *ring) oldest() uint64 { return r.last - uint64(len(r.buf)) + 1 }

func (r *ring) at(seq uint64) Event { return r.buf[int((seq-1)%uint64(r.keep))] }

// Publish adds e to the events. It sets Seq, and sets Time and Level if they are empty.
func (h *Hub) Publish(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publish(e)
}

func (h *Hub) publish(e Event) {
	if e.Time.IsZero() {
		e.Time = h.now()
	}
	if e.Level == "" {
		e.Level = LevelInfo
	}
	h.events.add(e)
	close(h.arrived)
	h.arrived = make(chan struct{})
}

// Subscribe returns a channel of events, from the oldest kept event if fromStart is set, otherwise from now on. The channel is closed
// when ctx ends, or when the hub is closed and all events were read. The hub does not wait for readers: a reader that is slower than
// the hub discards old events gets one event with Lost set in place of the discarded ones.
func (h *Hub) Subscribe(ctx context.Context, fromStart bool) <-chan Event {
	h.mu.Lock()
	next := h.events.last + 1
	if fromStart {
		next = h.events.oldest()
	}
	h.mu.Unlock()
	out := make(chan Event)
	go h.feed(ctx, next, out)
	return out
}

func (h *Hub) feed(ctx context.Context, next uint64, out chan<- Event) {
	defer close(out)
	for {
		e, arrived, ok := h.take(&next)
		if ok {
			select {
			case out <- e:
				continue
			case <-ctx.Done():
				return
			}
		}
		if arrived == nil {
			return
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return
		}
	}
}

// take returns the event with the number next and increments next. If there is no such event yet, it returns a channel that is closed
// at the next event, or nil if the hub is closed.
func (h *Hub) take(next *uint64) (Event, <-chan struct{}, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if oldest := h.events.oldest(); *next < oldest {
		lost := oldest - *next
		*next = oldest
		return Event{Time: h.now(), Component: NodeEvents, Level: LevelWarning, Lost: lost}, nil, true
	}
	if *next > h.events.last {
		if h.closed {
			return Event{}, nil, false
		}
		return Event{}, h.arrived, false
	}
	e := h.events.at(*next)
	*next++
	return e, nil, true
}

// Events returns the kept events, oldest first.
func (h *Hub) Events() []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]Event, 0, len(h.events.buf))
	for s := h.events.oldest(); s <= h.events.last; s++ {
		out = append(out, h.events.at(s))
	}
	return out
}
