package status

// SetComponent replaces the component with the name of c, or appends c. An empty Since is set to the time of the last change of state.
// An empty Log keeps the previous value. A change of state publishes an event with the reason of c and tail, the last lines of the
// component's output. The first time that a component is ready is recorded in Timings.
func (h *Hub) SetComponent(c Component, tail []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	old := Component{}
	if p := h.cur.Component(c.Name); p != nil {
		old = *p
	}
	if c.Since.IsZero() {
		c.Since = now
		if old.State == c.State {
			c.Since = old.Since
		}
	}
	if c.Log == "" {
		c.Log = old.Log
	}
	if old.State != c.State {
		h.publish(Event{
			Component: c.Name, From: string(old.State), To: string(c.State), Reason: c.Reason,
			Tail: tail, Level: componentLevel(c.State),
		})
	}
	h.update(func(s *Status) {
		if p := s.Component(c.Name); p != nil {
			*p = c
		} else {
			s.Components = append(s.Components, c)
		}
		if c.State == Ready || c.State == Done {
			setTiming(s, c.Name, now)
		}
	})
}

func componentLevel(s ComponentState) string {
	switch s {
	case Failed:
		return LevelError
	case Backoff:
		return LevelWarning
	}
	return LevelInfo
}

// SetPorts replaces the forwarded ports. A port that is new, removed or in another state publishes an event of port/ADDRESS.
func (h *Hub) SetPorts(ports []Port) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := map[string]string{}
	for _, p := range h.cur.Ports {
		old[portKey(p)] = p.State
	}
	for _, p := range ports {
		from := old[portKey(p)]
		delete(old, portKey(p))
		if from != p.State {
			h.publish(portEvent(p, from))
		}
	}
	for _, p := range h.cur.Ports {
		if from, gone := old[portKey(p)]; gone {
			h.publish(Event{Component: "port/" + p.Address(), From: from, To: "removed", Reason: p.Owner})
		}
	}
	h.update(func(s *Status) { s.Ports, s.PortCounts = append([]Port(nil), ports...), CountPorts(ports) })
}

// portKey returns a key that identifies a port. Refused ports include their owner, because one address can have several of them.
func portKey(p Port) string {
	if p.State == PortRefused {
		return p.Address() + " " + p.Owner
	}
	return p.Address()
}

func portEvent(p Port, from string) Event {
	e := Event{Component: "port/" + p.Address(), From: from, To: p.State, Reason: p.Owner, Level: LevelInfo}
	if p.State == PortFailed || p.State == PortRefused {
		e.Level, e.Reason = LevelWarning, p.Error
	}
	return e
}
