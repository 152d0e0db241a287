package portdriver

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"

	"github.com/rootlessnode/rootlessnode/internal/relay"
)

// Fault is an open port that currently accepts no new connections: they wait in its queue.
type Fault struct {
	Spec port.Spec
	// Reason is one of the Reason constants; Message contains the numbers.
	Reason, Message string
}

// Reasons of faults.
const (
	// ReasonConnections means that the port has used its share of the descriptors for connections.
	ReasonConnections = "TooManyConnections"
	// ReasonFiles means that the process or the host has no descriptors left.
	ReasonFiles = "TooManyOpenFiles"
)

const (
	// perConnection is the number of descriptors of a connection: the client's socket, and the server's or, before that, the
	// one to the child.
	perConnection = 2
	// perPort is the number of descriptors of an open port: the listener, and a connection that waits for free descriptors.
	perPort = 2
	// mostPipes is the number of simultaneous bulk transfers through pipes; others are copied through buffers.
	mostPipes = 64
	// fullPause is the delay between two attempts to take descriptors.
	fullPause = 20 * time.Millisecond
	// A port has a fault when connections have waited for longer than faultAfter, until none has waited for faultClears.
	faultAfter, faultClears = time.Second, 5 * time.Second
)

// limits divides the descriptors of the process: an eighth for other work of the process, a quarter for essential ports, and
// the rest for all other ports.
type limits struct {
	essential, others *relay.Budget
	pipes             *relay.Pipes
}

func newLimits(descriptors int) limits {
	essential, rest := descriptors/4, descriptors/8
	return limits{
		essential: relay.NewBudget(essential), others: relay.NewBudget(descriptors - essential - rest),
		pipes: relay.NewPipes(min(mostPipes, max(1, rest/8))),
	}
}

// monitor tracks which ports have a fault and reports changes.
type monitor struct {
	report func([]Fault) error // may be nil
	now    func() time.Time

	mu      sync.Mutex
	ports   map[*forward]*shortage
	waker   chan struct{}
	changed bool
}

// shortage is the state of a port that recently could not accept a connection.
type shortage struct {
	fault       Fault
	since, last time.Time
	reported    bool
}

func newMonitor(report func([]Fault) error) *monitor {
	return &monitor{report: report, now: time.Now, ports: map[*forward]*shortage{}, waker: make(chan struct{}, 1)}
}

// short records that f could not accept a connection.
func (m *monitor) short(f *forward, reason, message string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	s := m.ports[f]
	if s == nil {
		s = &shortage{fault: Fault{Spec: f.spec, Reason: reason, Message: message}, since: now}
		m.ports[f] = s
	}
	s.last = now
	select {
	case m.waker <- struct{}{}:
	default:
	}
}

// forget removes a port that is closed.
func (m *monitor) forget(f *forward) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.ports[f]; s != nil {
		m.changed = m.changed || s.reported
		delete(m.ports, f)
	}
}

// run reports until quit is closed. While no port has a shortage, it waits without a timer.
func (m *monitor) run(quit <-chan struct{}) {
	for {
		select {
		case <-quit:
			return
		case <-m.waker:
		}
		tick := time.NewTicker(faultAfter)
		for idle := false; !idle; {
			select {
			case <-quit:
				tick.Stop()
				return
			case <-tick.C:
			}
			idle = m.check()
		}
		tick.Stop()
	}
}

// check reports the faults if they have changed. It returns whether no shortage is left.
func (m *monitor) check() (idle bool) {
	m.mu.Lock()
	now := m.now()
	faults := []Fault{}
	for f, s := range m.ports {
		switch {
		case now.Sub(s.last) >= faultClears:
			m.changed = m.changed || s.reported
			delete(m.ports, f)
			continue
		case s.reported || s.last.Sub(s.since) >= faultAfter:
			m.changed = m.changed || !s.reported
			s.reported = true
			faults = append(faults, s.fault)
		}
	}
	idle = len(m.ports) == 0
	changed := m.changed
	m.changed = false
	m.mu.Unlock()
	if changed && m.report != nil {
		slices.SortFunc(faults, func(a, b Fault) int {
			return cmp.Or(cmp.Compare(a.Spec.ParentPort, b.Spec.ParentPort), strings.Compare(a.Spec.ParentIP, b.Spec.ParentIP), strings.Compare(a.Spec.Proto, b.Spec.Proto))
		})
		if m.report(faults) != nil { // most likely also a lack of descriptors: retry at the next check
			m.mu.Lock()
			m.changed, idle = true, false
			m.mu.Unlock()
		}
	}
	return idle
}
