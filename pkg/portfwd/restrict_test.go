package portfwd

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/poll"
)

// fakeFilter is a SourceFilter that checks what is open at each moment.
type fakeFilter struct {
	m       *fakeManager
	mu      sync.Mutex
	fault   error
	allowed map[string]string // by "PROTO IP PORT"
	calls   int
}

func (f *fakeFilter) SetSources(_ context.Context, allowed map[Bind][]netip.Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.fault != nil {
		return f.fault
	}
	f.allowed = map[string]string{}
	for b, list := range allowed {
		f.allowed[bindKey(b)] = fmt.Sprint(list)
	}
	return nil
}

func (f *fakeFilter) with(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
}

// has returns the open ports with the clients that each accepts.
func (f *fakeFilter) has() []string {
	list := []string{}
	for _, key := range f.m.has() {
		s, _ := parseSpecKey(key)
		list = append(list, itoa(s.ParentPort)+" "+f.clients(s))
	}
	return list
}

func (f *fakeFilter) clients(s port.Spec) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if list, there := f.allowed[fmt.Sprintf("%s %s %d", s.Proto, s.ParentIP, s.ParentPort)]; there {
		return list
	}
	return "all"
}

func restricted(ranges ...string) Service {
	s := balanced("lb", ServicePort{Name: "web", Port: 80, NodePort: 30080})
	s.LoadBalancerSourceRanges = ranges
	return s
}

// ranged returns the options of a Forwarder for a Service with source ranges.
func ranged(t *testing.T) (m *fakeManager, filter *fakeFilter, src *fakeSource, o Options, events *[]string) {
	m, src = newFakeManager(), newFakeSource()
	filter, events = &fakeFilter{m: m}, &[]string{}
	o = Options{
		Manager: m, Source: src, SourceFilter: filter, Config: Config{NodePorts: true, LoadBalancers: true},
		Ledger:  filepath.Join(t.TempDir(), "ports"),
		OnEvent: func(e Event) { *events = append(*events, e.Reason) },
	}
	return m, filter, src, o, events
}

func TestSourceRangesAreInForceFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, filter, src, o, events := ranged(t)
		m.script = func(op string, s port.Spec) error {
			if op == "add" && filter.clients(s) == "all" {
				t.Errorf("%v is opened before its ranges are in force", s)
			}
			return nil
		}
		filter.fault = errLost
		f := start(t, o)
		src.set(restricted("192.0.2.0/24", "::ffff:198.51.100.0/120", "2001:db8::1/64"))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{})
		assert.DeepEqual(t, f.states(), []string{
			"127.0.0.1:80/tcp4 ns/lb/web failed SourceRangesNotEnforced", "127.0.0.1:30080/tcp4 ns/lb/web failed SourceRangesNotEnforced"})
		assert.DeepEqual(t, *events, []string{ReasonSources, ReasonSources})

		filter.with(func() { filter.fault = nil })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		const all = " [192.0.2.0/24 198.51.100.0/24 2001:db8::/64]"
		assert.DeepEqual(t, filter.has(), []string{"30080" + all, "80" + all})
		assert.Check(t, is.Contains(strings.Join(*events, " "), ReasonOpen))

		// New ranges do not reopen the port.
		m.with(func() { m.adds, m.removes = nil, nil })
		src.set(restricted("203.0.113.0/24"))
		synctest.Wait()
		assert.DeepEqual(t, filter.has(), []string{"30080 [203.0.113.0/24]", "80 [203.0.113.0/24]"})
		filter.with(func() { filter.fault = errLost }) // removing the ranges is retried
		src.set(restricted())
		time.Sleep(3 * time.Second)
		synctest.Wait()
		assert.DeepEqual(t, filter.has(), []string{"30080 [203.0.113.0/24]", "80 [203.0.113.0/24]"})
		filter.with(func() { filter.fault = nil })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.DeepEqual(t, filter.has(), []string{"30080 all", "80 all"})
		assert.Equal(t, len(m.adds)+len(m.removes), 0)

		// If ranges cannot be enforced, an open port is closed.
		filter.with(func() { filter.fault = errLost })
		m.script = nil
		src.set(restricted("192.0.2.0/24"))
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{})
	})
}

// A restricted port stays restricted until it is closed.
func TestSourceRangesStayUntilThePortIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, filter, src, o, _ := ranged(t)
		start(t, o)
		src.set(restricted("192.0.2.0/24"))
		synctest.Wait()
		m.script = func(_ string, s port.Spec) error {
			assert.Check(t, filter.clients(s) == "[192.0.2.0/24]", "%v", s)
			return nil
		}
		src.remove("lb")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{})
		assert.Equal(t, len(filter.allowed), 0)
		m.script = nil
		open := nodePort("other", 30080) // another Service gets the place, for all clients
		src.set(open)
		synctest.Wait()
		assert.DeepEqual(t, filter.has(), []string{"30080 all"})
	})
}

// After a restart, no port accepts more clients than before until all Services are known.
func TestSourceRangesOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, filter, src, o, _ := ranged(t)
		o.KeepOnStop = true
		src.set(restricted("192.0.2.0/24"))
		f := start(t, o)
		synctest.Wait()
		before := filter.has()
		assert.NilError(t, f.stop())
		src.mute, src.sink = true, nil
		f = start(t, o)
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.DeepEqual(t, filter.has(), before)
		// The Service was deleted in between: no client is accepted while the port is being closed.
		m.script = func(op string, s port.Spec) error {
			assert.Check(t, op == "remove" && filter.clients(s) == "[]", "%s %v %s", op, s, filter.clients(s))
			return nil
		}
		src.sink.Replace(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{})
		assert.NilError(t, f.stop())
	})
}

// Forwards that other programs made through RootlessKit are not restricted.
func TestSourceRangesIgnoreForeignForwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, filter, src, o, _ := ranged(t)
		same := specOf(80) // also wanted by the Service
		same.ChildPort = 7001
		for _, s := range []port.Spec{specOf(7000), same} {
			_, err := m.AddPort(t.Context(), s)
			assert.NilError(t, err)
		}
		src.set(restricted("192.0.2.0/24"))
		start(t, o)
		time.Sleep(2 * DefaultResyncEvery)
		synctest.Wait()
		assert.DeepEqual(t, filter.has(), []string{"30080 [192.0.2.0/24]", "7000 all", "80 all"})
	})
}

// Without a filter, and with malformed ranges, the ports stay closed, and an open port is closed.
func TestSourceRangesFailClosed(t *testing.T) {
	for reason, bad := range map[string]Service{
		ReasonSources:        restricted("192.0.2.0/24"),
		ReasonSourcesInvalid: restricted("192.0.2.0/24", "192.0.2.0/33"),
	} {
		synctest.Test(t, func(t *testing.T) {
			m, _, src, o, events := ranged(t)
			if reason == ReasonSources {
				o.SourceFilter = nil
			}
			f := start(t, o)
			src.set(restricted())
			synctest.Wait()
			assert.Equal(t, len(m.has()), 2)
			src.set(bad)
			f.SetConfig(o.Config)
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.DeepEqual(t, m.has(), []string{})
			assert.DeepEqual(t, f.states(), []string{
				"127.0.0.1:80/tcp4 ns/lb/web refused " + reason, "127.0.0.1:30080/tcp4 ns/lb/web refused " + reason})
			assert.DeepEqual(t, *events, []string{reason})
			assert.Equal(t, len(Ingress(bad, f.o.Config)), 0)
			src.set(restricted())
			synctest.Wait()
			assert.Equal(t, len(m.has()), 2)
		})
	}
}

func TestSourceRangesOfServices(t *testing.T) {
	t.Parallel()
	legacy := func(text string) Service {
		s := restricted()
		s.Annotations = map[string]string{AnnotationSourceRanges: text}
		return s
	}
	both := legacy("192.0.2.0/24")
	both.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
	other := restricted("192.0.2.0/24")
	other.Type = "NodePort"
	var many []string
	for i := range maxSourceRanges + 1 {
		many = append(many, fmt.Sprintf("10.0.%d.%d/32", i/256, i%256))
	}
	for _, tc := range []struct {
		s           Service
		want, fault string
	}{
		{restricted(), "", ""},
		{restricted("192.0.2.7/24", " 198.51.100.0/24 ", "192.0.2.0/24"), "192.0.2.0/24,198.51.100.0/24", ""},
		{restricted("0.0.0.0/0"), "0.0.0.0/0", ""},
		{legacy("192.0.2.0/24, 2001:db8::/32"), "192.0.2.0/24,2001:db8::/32", ""},
		{legacy("  "), "", ""},
		{both, "198.51.100.0/24", ""},
		{other, "", ""},
		{restricted("192.0.2.7"), "", `spec.loadBalancerSourceRanges: invalid CIDR "192.0.2.7"`},
		{restricted("010.0.0.0/8"), "", "invalid CIDR"},
		{restricted("fe80::%eth0/64"), "", "invalid CIDR"},
		{restricted(""), "", "invalid CIDR"},
		{restricted("::ffff:0.0.0.0/80"), "", "at least 96"},
		{legacy("192.0.2.0/24,"), "", "annotation " + AnnotationSourceRanges + `: invalid CIDR ""`},
		{legacy(strings.Repeat("x", 5000)), "", "…"},
		{restricted(many...), "", "too many ranges: 257, the limit is 256"},
	} {
		got, err := tc.s.sourceRanges()
		if tc.fault != "" {
			assert.ErrorContains(t, err, tc.fault)
			assert.Assert(t, len(err.Error()) < 512)
			continue
		}
		assert.NilError(t, err)
		assert.Equal(t, string(got), tc.want)
	}
	assert.Assert(t, SourceRanges("").Prefixes() == nil)
	assert.Assert(t, SourcesNone.Prefixes() != nil && len(SourcesNone.Prefixes()) == 0)

	// All ports of the Service except the health check's are restricted, also with another load balancer class.
	foreign := restricted("192.0.2.0/24")
	foreign.LoadBalancerClass, foreign.ExternalTrafficPolicy, foreign.HealthCheckNodePort = "example.com/other", "Local", 31000
	forwards, _ := Wanted(Input{Services: []Service{foreign}}, everything())
	assert.Assert(t, slices.EqualFunc(forwards, []string{"192.0.2.0/24", ""}, func(f Forward, s string) bool { return string(f.Sources) == s }), "%v", forwards)
}

// A restricted load balancer accepts only clients in its ranges, with TCP and UDP, from the Service to the socket.
func TestSourceRangesEndToEnd(t *testing.T) {
	m, filter := filteringKit(t)
	p := echo(t)
	s := Service{Namespace: "ns", Name: "lb", Type: "LoadBalancer", ClusterIPs: []string{nodeSide}, Ports: []ServicePort{
		{Name: "t", Protocol: "TCP", Port: p}, {Name: "u", Protocol: "UDP", Port: p}}}
	s.LoadBalancerSourceRanges = []string{"127.0.0.3/32"}
	src := newFakeSource(s)
	f := start(t, Options{
		Manager: m, Source: src, SourceFilter: filter, Config: Config{LoadBalancers: true, BindAddresses: addrs(hostSide)},
	})
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		for _, st := range f.Status() {
			if st.State != StateOpen {
				return poll.Continue("%v", f.states())
			}
		}
		return poll.Compare(is.Len(f.Status(), 2))
	}, poll.WithTimeout(time.Minute))
	// exchangeFrom sends a line from an address and returns the answer, or an empty string.
	exchangeFrom := func(proto, from string, patience time.Duration) string {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		if proto == "udp4" {
			d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from)}
		}
		c, err := d.DialContext(t.Context(), proto, net.JoinHostPort(hostSide, itoa(p)))
		if err != nil {
			return ""
		}
		defer c.Close()
		assert.NilError(t, c.SetDeadline(time.Now().Add(patience)))
		_, _ = io.WriteString(c, "x\n") // the answer is then missing
		buf := make([]byte, 16)
		n, _ := c.Read(buf)
		return string(buf[:n])
	}
	for _, proto := range []string{"tcp4", "udp4"} {
		assert.Equal(t, exchangeFrom(proto, "127.0.0.3", time.Minute), "echo x\n", proto)
		assert.Equal(t, exchangeFrom(proto, "127.0.0.1", 100*time.Millisecond), "", proto)
	}
	s.LoadBalancerSourceRanges = []string{"127.0.0.1/32"}
	src.set(s)
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		if exchangeFrom("tcp4", "127.0.0.1", time.Minute) == "" {
			return poll.Continue("the new ranges are not in force")
		}
		return poll.Success()
	}, poll.WithTimeout(time.Minute))
	assert.Equal(t, exchangeFrom("udp4", "127.0.0.1", time.Minute), "echo x\n")
	assert.Equal(t, exchangeFrom("tcp4", "127.0.0.3", time.Minute), "")
	assert.NilError(t, f.stop())
}
