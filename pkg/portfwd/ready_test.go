package portfwd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// handed is a source that passes its sink to the test.
type handed[T any] struct{ sink chan T }

func hand[T any]() handed[T] { return handed[T]{make(chan T, 1)} }

func (h handed[T]) Run(ctx context.Context, sink T) error {
	h.sink <- sink
	<-ctx.Done()
	return ctx.Err()
}

// handedEndpoints is the same for endpoints. It records the Services of each run. A later run passes its sink only if the
// test took the previous one.
type handedEndpoints struct {
	handed[EndpointSink]
	asked chan []Key
}

func handEndpoints() handedEndpoints {
	return handedEndpoints{hand[EndpointSink](), make(chan []Key, 16)}
}

func (h handedEndpoints) Run(ctx context.Context, services []Key, sink EndpointSink) error {
	select {
	case h.sink <- sink:
	default:
	}
	h.asked <- services
	<-ctx.Done()
	return ctx.Err()
}

func TestOnlyRelevantEndpointsAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src, ends := newFakeManager(), newFakeSource(), handEndpoints()
		f := start(t, Options{Manager: m, Source: src, Endpoints: ends, Config: nodePorts})
		rest := func() { time.Sleep(time.Minute); synctest.Wait() }
		inner := nodePort("inner", 0)
		inner.Type = "ClusterIP"
		src.set(inner)
		rest()
		assert.Equal(t, len(ends.asked), 0, "no port of the host is open")
		src.set(nodePort("a", 30001))
		rest()
		first := <-ends.sink
		assert.DeepEqual(t, <-ends.asked, []Key{{"ns", "a"}})
		src.set(inner)
		src.set(nodePort("b", 30002))
		rest()
		assert.Equal(t, len(ends.asked), 0, "the first list must arrive before the next query")
		first.Replace(map[Key]Endpoints{{"ns", "a"}: {Ready4: true}})
		rest()
		assert.DeepEqual(t, <-ends.asked, []Key{{"ns", "a"}, {"ns", "b"}})
		assert.DeepEqual(t, m.has(), []string{spec1}) // the open port stays open
		(<-ends.sink).Replace(map[Key]Endpoints{{"ns", "a"}: {Ready4: true}, {"ns", "b"}: {Ready4: true}})
		rest()
		assert.DeepEqual(t, m.has(), []string{spec1, spec2})
		src.remove("a")
		rest()
		assert.Equal(t, len(ends.asked), 0, "no query after a deletion")
		for i := range maxQueried {
			src.set(nodePort(fmt.Sprintf("s%03d", i), 31000+i))
		}
		rest()
		for some := <-ends.asked; some != nil; some = <-ends.asked { // until there are too many for a query by name
			assert.Assert(t, len(some) <= maxQueried)
			(<-ends.sink).Replace(nil)
			rest()
		}
		(<-ends.sink).Replace(nil)
		src.set(nodePort("last", 32000))
		rest()
		assert.Equal(t, len(ends.asked), 0)
		assert.NilError(t, f.stop())
	})
}

func TestServiceWithoutEndpointsIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src, ends := newFakeManager(), newFakeSource(nodePort("a", 30001)), handEndpoints()
		var events []Event
		f := start(t, Options{Manager: m, Source: src, Endpoints: ends, Config: nodePorts, OnEvent: func(e Event) { events = append(events, e) }})
		sink := <-ends.sink
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{})
		sink.Replace(nil)
		synctest.Wait()
		assert.DeepEqual(t, f.states(), []string{"127.0.0.1:30001/tcp4 ns/a/web waiting NoReadyEndpoint"})

		sink.Set(Key{"ns", "a"}, Endpoints{Ready4: true})
		sink.Set(Key{"ns", "b"}, Endpoints{Ready4: true}) // before the Service is known
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1})
		src.set(nodePort("b", 30002))
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1, spec2})

		sink.Set(Key{"ns", "a"}, Endpoints{})
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec2})
		assert.DeepEqual(t, f.states(), []string{
			"127.0.0.1:30001/tcp4 ns/a/web waiting NoReadyEndpoint", "127.0.0.1:30002/tcp4 ns/b/web open"})
		sink.Replace(map[Key]Endpoints{{"ns", "a"}: {Ready4: true}})
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1})
		src.remove("b")
		synctest.Wait()
		assert.DeepEqual(t, f.states(), []string{"127.0.0.1:30001/tcp4 ns/a/web open"})
		assert.Equal(t, len(events), 0, "a Service without endpoint is not a fault")
	})
}

// After a restart, no port is closed before all sources are known, in any order of the sources.
func TestRestartWaitsForAllSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeManager()
		o := Options{Manager: m, Source: newFakeSource(nodePort("a", 30001), nodePort("b", 30002)), Config: everything(),
			Ledger: filepath.Join(t.TempDir(), "ports"), KeepOnStop: true}
		o.Config.Static = []Static{{Name: "gone", Protocol: "tcp", HostPort: 7, ChildPort: 7}}
		f := start(t, o)
		synctest.Wait()
		assert.NilError(t, f.stop())
		assert.Equal(t, len(m.has()), 3)

		ends, pods := handEndpoints(), hand[PodSink]()
		o.Endpoints, o.Pods, o.Config.Static = ends, pods, nil
		start(t, o)
		endSink, podSink := <-ends.sink, <-pods.sink
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Equal(t, len(m.has()), 3)
		endSink.Replace(map[Key]Endpoints{{"ns", "a"}: {Ready4: true}})
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1, "tcp4 127.0.0.1 7 10.0.2.100 7"})
		podSink.Replace([]Pod{{Namespace: "ns", Name: "p", IPs: []string{"10.42.0.5"}, Ports: []PodPort{{HostPort: 8080, ContainerPort: 80}}}})
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1, "tcp4 127.0.0.1 8080 10.42.0.5 80"})
		podSink.Set(Pod{Namespace: "ns", Name: "p", IPs: []string{"10.42.0.6"}, Ports: []PodPort{{HostPort: 8080, ContainerPort: 80}}})
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1, "tcp4 127.0.0.1 8080 10.42.0.6 80"})
		podSink.Delete("ns", "p")
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1})
	})
}

func TestSetConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeManager()
		o := Options{Manager: m, Source: newFakeSource(nodePort("a", 30001), annotated(nodePort("b", 30002), "bind", "wlan0")), Config: nodePorts}
		f := start(t, o)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1})
		m.adds = nil
		cfg := nodePorts
		cfg.Static = []Static{{Name: "8080:80", Protocol: "tcp", HostPort: 8080, ChildPort: 80, Manual: true}}
		cfg.HostAddresses, cfg.BindAnywhere = hosts("wlan0", "192.0.2.8"), true // the interface is up now
		f.SetConfig(cfg)
		synctest.Wait()
		assert.DeepEqual(t, f.states(), []string{
			"127.0.0.1:8080/tcp4 manual/8080:80 open", "127.0.0.1:30001/tcp4 ns/a/web open", "192.0.2.8:30002/tcp4 ns/b/web open"})
		assert.Equal(t, len(m.adds), 2, "unchanged forwards stay open")
		f.SetConfig(nodePorts)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1})
		assert.NilError(t, f.stop())
	})
}

func TestPickPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeManager()
		var events []Event
		o := Options{Manager: m, Ledger: filepath.Join(t.TempDir(), "ports"), KeepOnStop: true, OnEvent: func(e Event) { events = append(events, e) },
			Config: Config{PickFirst: 20000, PickLast: 20004, Static: []Static{
				{Name: "x", Protocol: "tcp", ChildPort: 80}, {Name: "y", Protocol: "tcp", ChildPort: 81}, {Name: "fixed", Protocol: "tcp", HostPort: 20002, ChildPort: 1}}}}
		for p := range 5 {
			m.taken[20000+p] = p < 2
		}
		f := start(t, o)
		time.Sleep(time.Minute)
		synctest.Wait()
		open := f.states()
		assert.Equal(t, len(open), 3)
		seen := map[int]bool{}
		for _, s := range f.Status() {
			assert.Check(t, is.Equal(s.State, StateOpen))
			assert.Check(t, s.HostPort >= 20002 && !seen[s.HostPort])
			seen[s.HostPort] = true
		}
		assert.Equal(t, len(events), 0)
		assert.NilError(t, f.stop())
		m.with(func() { clear(m.taken); m.adds = nil })
		f = start(t, o)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.DeepEqual(t, f.states(), open)
		assert.Equal(t, len(m.adds), 0, "the same ports as before")
	})
}

// publisher records the requested writes and shows them as the API server would.
type testPublisher struct {
	src *fakeSource

	mu   sync.Mutex
	fail bool
	log  []string
}

// now sets whether it fails, and returns the requests since the last call.
func (p *testPublisher) now(fail bool) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	log := p.log
	p.fail, p.log = fail, nil
	return log
}

func (p *testPublisher) PublishIngress(_ context.Context, s Service, addrs []netip.Addr) error {
	p.mu.Lock()
	p.log = append(p.log, fmt.Sprint(s.Name, addrs))
	fail := p.fail
	p.mu.Unlock()
	if fail {
		return errors.New("no")
	}
	s.Ingress = nil
	for _, a := range addrs {
		s.Ingress = append(s.Ingress, a.String())
	}
	p.src.set(s)
	return nil
}

func TestLoadBalancersGetAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := balanced("done", ServicePort{Port: 82, NodePort: 30082})
		done.Ingress = []string{"127.0.0.1"}
		foreign := balanced("foreign", ServicePort{Port: 83, NodePort: 30083})
		foreign.LoadBalancerClass, foreign.Ingress = "example.com/other", []string{"203.0.113.5"}
		lb := balanced("lb", ServicePort{Port: 81, NodePort: 30081})
		src := newFakeSource(lb, done, foreign)
		p := &testPublisher{src: src, fail: true}
		m := newFakeManager()
		start(t, Options{Manager: m, Source: src, Publisher: p, Config: everything()})
		time.Sleep(time.Second)
		synctest.Wait()
		log := p.now(false)
		assert.Assert(t, len(log) > 1 && log[0] == "lb[127.0.0.1]", "%v", log)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.DeepEqual(t, p.now(false), []string{"lb[127.0.0.1]"})
		assert.Assert(t, is.Contains(m.has(), "tcp4 127.0.0.1 81 10.0.2.100 30081"))

		now := lb
		now.Type, now.Ingress = "NodePort", []string{"127.0.0.1"}
		src.set(now)
		src.remove("done")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.DeepEqual(t, p.now(false), []string{"lb[]"})
		assert.Assert(t, !is.Contains(m.has(), "tcp4 127.0.0.1 81 10.0.2.100 30081")().Success())
	})
}

func TestWildcardKeepsToItsFamily(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeManager()
		m.script = func(_ string, s port.Spec) error {
			assert.Check(t, len(s.Proto) == 4, "%s does not name the family", s.Proto)
			return nil
		}
		cfg := everything()
		cfg.BindAddresses = addrs("0.0.0.0")
		cfg.Static = []Static{{Name: "s", Protocol: "udp", HostPort: 5353, ChildPort: 53}}
		start(t, Options{Manager: m, Source: newFakeSource(bothProtocols("a", 30001)), Config: cfg})
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{
			"tcp4 0.0.0.0 30001 10.0.2.100 30001", "udp4 0.0.0.0 30001 10.0.2.100 30001", "udp4 0.0.0.0 5353 10.0.2.100 53"})
	})
}
