package portfwd

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// denying is a port manager of a host that does not permit ports below 1024.
func denying() *fakeManager {
	m := newFakeManager()
	m.script = func(_ string, s port.Spec) error {
		if s.ParentPort < privileged {
			return refuse("cannot expose privileged port 80 (currently 1024): listen: bind: permission denied")
		}
		return nil
	}
	return m
}

// webServices are a load balancer and a pod with privileged ports.
func webServices() (*fakeSource, *fakePods) {
	return newFakeSource(balanced("a", ServicePort{Name: "web", Protocol: "TCP", Port: 80, NodePort: 30001})),
		&fakePods{Pod{Namespace: "ns", Name: "p", IPs: []string{"10.42.0.9"}, Ports: []PodPort{{"https", "TCP", 8443, 443, ""}}}}
}

// fakePods is a constant set of pods.
type fakePods []Pod

func (p *fakePods) Run(ctx context.Context, sink PodSink) error {
	sink.Replace(*p)
	<-ctx.Done()
	return ctx.Err()
}

// TestDeniedPorts checks that ports of Services and pods that the host does not permit are not faults of the node, that they are
// reported once and seldom retried, and that they open when the host permits them.
func TestDeniedPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := denying()
		src, pods := webServices()
		var events []Event
		f := start(t, Options{Manager: m, Source: src, Pods: pods, OnEvent: func(e Event) { events = append(events, e) },
			Config: Config{LoadBalancers: true, PodHostPorts: true}})
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{})
		for _, p := range f.Status() {
			assert.Check(t, p.State == StateFailed && p.RefusedByHost(), "%+v", p)
			assert.Check(t, is.Contains(p.Hint, "ports.privilegedPortFallback: 8000"))
		}
		assert.Check(t, is.Len(events, 2))
		assert.Check(t, len(m.adds) < 2*75, "%d attempts", len(m.adds))
		m.with(func() { m.script = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{"tcp4 127.0.0.1 443 10.42.0.9 8443", "tcp4 127.0.0.1 80 10.0.2.100 30001"})
		assert.Check(t, is.Len(events, 4))
	})
}

// TestDeniedPortsHaveReplacements checks ports.privilegedPortFallback.
func TestDeniedPortsHaveReplacements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := denying()
		src, pods := webServices()
		cfg := Config{LoadBalancers: true, PodHostPorts: true, PrivilegedPortFallback: 8000}
		var messages []string
		f := start(t, Options{Manager: m, Source: src, Pods: pods, Config: cfg, OnEvent: func(e Event) { messages = append(messages, e.Message) }})
		synctest.Wait()
		assert.Check(t, is.Contains(strings.Join(messages, "\n"), "; port 8080 is forwarded instead"))
		replaced := []string{"tcp4 127.0.0.1 8080 10.0.2.100 30001", "tcp4 127.0.0.1 8443 10.42.0.9 8443"}
		assert.DeepEqual(t, m.has(), replaced)
		assert.DeepEqual(t, f.states(), []string{
			"127.0.0.1:80/tcp4 ns/a/web failed " + ReasonDenied, "127.0.0.1:443/tcp4 pod:ns/p/https failed " + ReasonDenied,
			"127.0.0.1:8080/tcp4 ns/a/web open", "127.0.0.1:8443/tcp4 pod:ns/p/https open",
		})
		assert.Check(t, is.Contains(f.Status()[0].Hint, "ports.privilegedPortFallback forwards port 8080 instead"))
		f.SetConfig(cfg)
		src.remove("a")
		synctest.Wait()
		assert.DeepEqual(t, m.has(), replaced[1:])
		again, _ := webServices()
		src.set(again.all["a"])
		synctest.Wait()
		assert.DeepEqual(t, m.has(), replaced)

		m.with(func() { m.script = nil })
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{"tcp4 127.0.0.1 443 10.42.0.9 8443", "tcp4 127.0.0.1 80 10.0.2.100 30001"})
	})
}
