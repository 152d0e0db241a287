package portfwd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/httputil"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"go.uber.org/goleak"
	"gotest.tools/v3/assert"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func itoa(n int) string { return strconv.Itoa(n) }

var errLost = errors.New("connection reset")

// refuse returns an error as RootlessKit's router sends it.
func refuse(text string) error {
	body, _ := json.Marshal(httputil.ErrorJSON{Message: text})
	return &httputil.HTTPStatusError{StatusCode: 400, Body: string(body)}
}

// fakeManager is a port manager with RootlessKit's rules. Other programs may use ports of its host.
type fakeManager struct {
	mu     sync.Mutex
	ports  map[int]port.Status
	nextID int
	taken  map[int]bool // host ports in use by other programs
	info   api.Info
	down   bool
	// lose, if set, decides for each change whether the answer is lost, and whether a lost change took effect.
	lose func() (lost, effect bool)
	// script, if set, may return an error.
	script        func(op string, s port.Spec) error
	adds, removes []string
	lists         int
}

func newFakeManager() *fakeManager {
	return &fakeManager{ports: map[int]port.Status{}, nextID: 1, taken: map[int]bool{}, info: api.Info{
		NetworkDriver: &api.NetworkDriverInfo{Driver: "slirp4netns", ChildIP: net.IPv4(10, 0, 2, 100)},
		PortDriver:    &api.PortDriverInfo{Driver: "builtin", Protos: []string{"tcp", "tcp4", "tcp6", "udp", "udp4", "udp6"}},
	}}
}

func (m *fakeManager) change(op string, s port.Spec, do func()) error {
	if m.down {
		return errLost
	}
	if m.script != nil {
		if err := m.script(op, s); err != nil {
			return err
		}
	}
	if m.lose != nil {
		if lost, effect := m.lose(); lost {
			if effect {
				do()
			}
			return errLost
		}
	}
	do()
	return nil
}

func (m *fakeManager) AddPort(_ context.Context, s port.Spec) (*port.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.adds = append(m.adds, specKey(s))
	if !m.down {
		for id, st := range m.ports {
			if st.Spec.Proto == s.Proto && st.Spec.ParentIP == s.ParentIP && st.Spec.ParentPort == s.ParentPort {
				return nil, refuse(fmt.Sprintf("conflict with ID %d", id))
			}
		}
		if m.taken[s.ParentPort] {
			return nil, refuse(fmt.Sprintf("listen %s %s:%d: bind: address already in use", s.Proto, s.ParentIP, s.ParentPort))
		}
	}
	st := port.Status{Spec: s}
	err := m.change("add", s, func() {
		st.ID = m.nextID
		m.nextID++
		m.ports[st.ID] = st
	})
	if err != nil {
		return nil, err
	}
	return &st, nil
}

func (m *fakeManager) RemovePort(_ context.Context, id int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removes = append(m.removes, itoa(id))
	st, ok := m.ports[id]
	if !ok && !m.down {
		return refuse(fmt.Sprintf("unknown id: %d", id))
	}
	return m.change("remove", st.Spec, func() { delete(m.ports, id) })
}

func (m *fakeManager) ListPorts(context.Context) ([]port.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lists++
	if m.down {
		return nil, errLost
	}
	var all []port.Status
	for _, st := range m.ports {
		all = append(all, st)
	}
	return all, nil
}

func (m *fakeManager) Info(context.Context) (*api.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, errLost
	}
	info := m.info
	return &info, nil
}

func (m *fakeManager) with(fn func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn()
}

// has lists the forwards, sorted.
func (m *fakeManager) has() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := []string{}
	for _, st := range m.ports {
		list = append(list, specKey(st.Spec))
	}
	slices.Sort(list)
	return list
}

// fakeSource is a set of Services. Every run begins with the complete list.
type fakeSource struct {
	mu   sync.Mutex
	all  map[string]Service
	sink Sink
	mute bool // do not send the list yet
}

func newFakeSource(services ...Service) *fakeSource {
	s := &fakeSource{all: map[string]Service{}}
	for _, svc := range services {
		s.all[svc.Name] = svc
	}
	return s
}

func (s *fakeSource) list() []Service {
	var all []Service
	for _, svc := range s.all {
		all = append(all, svc)
	}
	return all
}

func (s *fakeSource) Run(ctx context.Context, sink Sink) error {
	s.mu.Lock()
	s.sink = sink
	if !s.mute {
		sink.Replace(s.list())
	}
	s.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (s *fakeSource) set(svc Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[svc.Name] = svc
	if s.sink != nil {
		s.sink.Set(svc)
	}
}

func (s *fakeSource) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, name)
	if s.sink != nil {
		s.sink.Delete("ns", name)
	}
}

// running is a Forwarder whose Run is active.
type running struct {
	*Forwarder
	stop func() error
}

func start(t *testing.T, o Options) *running {
	t.Helper()
	f, err := New(o)
	assert.NilError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	return &running{f, stop}
}

// states formats the status as "BIND OWNER STATE REASON".
func (f *Forwarder) states() []string {
	out := []string{}
	for _, s := range f.Status() {
		ap := netip.AddrPortFrom(netip.MustParseAddr(s.HostIP), uint16(s.HostPort))
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s/%s %s %s %s", ap, s.Proto, s.Owner, s.State, s.Reason)))
	}
	return out
}
