package portfwd

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// in returns s in another namespace, created seconds after a fixed time.
func in(namespace string, seconds int, s Service) Service {
	s.Namespace, s.UID = namespace, "u-"+namespace+"-"+s.Name
	s.Created = time.Date(2026, 1, 1, 0, 0, seconds, 0, time.UTC)
	return s
}

// A Service with an annotation does not get the port of another Service, even if its namespace sorts first.
func TestPlacesGoTo(t *testing.T) {
	t.Parallel()
	lb := balanced("lb", ServicePort{Port: 8080, NodePort: 30080})
	thief := func(port string) Service { return annotated(nodePort("thief", 30099), "host-port", port) }
	pod := Pod{Namespace: "aaa", Name: "p", UID: "u-p", IPs: []string{"10.42.0.5"}, Ports: []PodPort{{HostPort: 8080, ContainerPort: 80}}}
	cfg := Config{NodePorts: true, LoadBalancers: true, PodHostPorts: true, BindAnywhere: true}
	place := func(ip string, port int) Bind { a := addrs(ip)[0]; return Bind{family("tcp", a), a, port} }
	holder := func(s Service) Owner {
		return Owner{Kind: KindService, Namespace: s.Namespace, Name: s.Name, UID: s.UID}
	}
	for name, tc := range map[string]struct {
		services []Service
		pods     []Pod
		holders  map[Bind]Owner
		place    Bind
		want     string
	}{
		"the node port that the API server assigned, not an annotation": {
			services: []Service{in("zzz", 9, nodePort("victim", 31511)), in("aaa", 1, thief("31511"))},
			holders:  map[Bind]Owner{place("127.0.0.1", 31511): holder(in("aaa", 1, thief("31511")))},
			place:    place("127.0.0.1", 31511), want: "zzz/victim/web",
		},
		"the node port, not a listener on all addresses": {
			services: []Service{in("zzz", 9, nodePort("victim", 31511)), in("aaa", 1, annotated(thief("31511"), "host-port", "31511", "bind", "0.0.0.0"))},
			place:    place("127.0.0.1", 31511), want: "zzz/victim/web",
		},
		"the node port, not a load balancer's port": {
			services: []Service{in("zzz", 9, nodePort("victim", 31511)), in("aaa", 1, balanced("lb", ServicePort{Port: 31511, NodePort: 30001}))},
			place:    place("127.0.0.1", 31511), want: "zzz/victim/web",
		},
		"the holder": {
			services: []Service{in("zzz", 9, lb), in("aaa", 1, thief("8080"))},
			holders:  map[Bind]Owner{place("127.0.0.1", 8080): holder(in("zzz", 9, lb))},
			place:    place("127.0.0.1", 8080), want: "zzz/lb/8080",
		},
		"the holder, not a listener on all addresses": {
			services: []Service{in("zzz", 9, lb), in("aaa", 1, annotated(thief(""), "host-port", "8080", "bind", "0.0.0.0"))},
			holders:  map[Bind]Owner{place("127.0.0.1", 8080): holder(in("zzz", 9, lb))},
			place:    place("127.0.0.1", 8080), want: "zzz/lb/8080",
		},
		"the holder, not another Service of its name": {
			services: []Service{in("zzz", 9, lb), in("aaa", 10, thief("8080"))},
			holders:  map[Bind]Owner{place("127.0.0.1", 8080): {Kind: KindService, Namespace: "aaa", Name: "thief", UID: "u-before"}},
			place:    place("127.0.0.1", 8080), want: "zzz/lb/8080",
		},
		"the oldest": {
			services: []Service{in("zzz", 1, lb), in("aaa", 2, thief("8080"))},
			place:    place("127.0.0.1", 8080), want: "zzz/lb/8080",
		},
		"the oldest, of Services and pods": {
			services: []Service{in("zzz", 1, lb)}, pods: []Pod{{
				Namespace: pod.Namespace, Name: pod.Name, IPs: pod.IPs, Ports: pod.Ports, Created: time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)}},
			place: place("127.0.0.1", 8080), want: "pod:aaa/p/80",
		},
		"the first by namespace": {
			services: []Service{in("zzz", 1, lb), in("aaa", 1, thief("8080"))},
			place:    place("127.0.0.1", 8080), want: "aaa/thief/web",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, warnings := Wanted(Input{Services: tc.services, Pods: tc.pods, Holders: tc.holders}, cfg)
			owner := ""
			for _, f := range got {
				if f.Bind == tc.place {
					owner = f.Owner.String()
				}
				assert.Assert(t, !f.IP.IsUnspecified(), "%v", f)
			}
			assert.Equal(t, owner, tc.want)
			assert.Equal(t, len(warnings), 1)
			assert.Check(t, is.Contains(warnings[0].Message, "is already forwarded for "+tc.want))
		})
	}
}

// The holder keeps its port while others request it, and over restarts of the forwarder and of RootlessKit. When it is
// deleted, the next one gets the port. The loser gets one Event.
func TestHolderKeepsItsPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src := newFakeManager(), newFakeSource()
		clashes := 0
		o := Options{
			Manager: m, Source: src, Config: Config{NodePorts: true, LoadBalancers: true}, Ledger: filepath.Join(t.TempDir(), "ports"),
			OnEvent: func(e Event) {
				if e.Reason == ReasonClash && e.Owner.Name == "a-thief" {
					clashes++
				}
			},
		}
		f := start(t, o)
		synctest.Wait()
		src.set(balanced("lb", ServicePort{Name: "web", Port: 8080, NodePort: 30080}))
		synctest.Wait()
		src.set(annotated(nodePort("a-thief", 30001), "host-port", "8080"))
		holds := func(when string) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.DeepEqual(t, f.states(), []string{
				"127.0.0.1:8080/tcp4 ns/lb/web open", "127.0.0.1:8080/tcp4 ns/a-thief/web refused PortClash",
				"127.0.0.1:30080/tcp4 ns/lb/web open"})
			assert.DeepEqual(t, m.has(), []string{"tcp4 127.0.0.1 30080 10.0.2.100 30080", "tcp4 127.0.0.1 8080 10.0.2.100 30080"})
			assert.Equal(t, clashes, 1, when)
		}
		holds("after another one came")
		src.set(nodePort("b", 30002)) // changes of others do not repeat an Event
		src.remove("b")
		holds("after others came and went")

		assert.NilError(t, f.stop())
		clashes = 0
		f = start(t, o)
		holds("after a restart")
		assert.NilError(t, f.stop())
		m.with(func() { clear(m.ports) })
		clashes = 0
		f = start(t, o)
		holds("after a restart of RootlessKit")

		src.remove("lb")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.DeepEqual(t, f.states(), []string{"127.0.0.1:8080/tcp4 ns/a-thief/web open"})
		src.set(balanced("lb", ServicePort{Name: "web", Port: 8080, NodePort: 30080}))
		synctest.Wait()
		assert.Check(t, is.Contains(strings.Join(f.states(), "\n"), "ns/lb/web refused PortClash"), "it came later")
	})
}

// After a restart, a place is reserved for its holder until it is known whether the holder still wants it.
func TestPlacesAreReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src, pods := newFakeManager(), newFakeSource(annotated(nodePort("thief", 30001), "host-port", "8080")), hand[PodSink]()
		o := Options{Manager: m, Source: newFakeSource(), Pods: pods, Config: everything(), Ledger: filepath.Join(t.TempDir(), "ports")}
		pod := Pod{Namespace: "ns", Name: "p", UID: "1", IPs: []string{"10.42.0.5"}, Ports: []PodPort{{HostPort: 8080, ContainerPort: 80}}}
		f := start(t, o)
		(<-pods.sink).Replace([]Pod{pod})
		synctest.Wait()
		assert.DeepEqual(t, f.states(), []string{"127.0.0.1:8080/tcp4 pod:ns/p/80 open"})
		assert.NilError(t, f.stop())

		o.Source = src
		f = start(t, o)
		sink := <-pods.sink
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, len(f.states()), 0, "the pods are not known yet")
		pod.IPs = nil
		sink.Replace([]Pod{pod})
		synctest.Wait()
		assert.DeepEqual(t, f.states(), []string{
			"127.0.0.1:8080/tcp4 pod:ns/p/80 waiting NoReadyEndpoint", "127.0.0.1:8080/tcp4 ns/thief/web refused PortClash"})
		sink.Delete("ns", "p")
		synctest.Wait()
		assert.DeepEqual(t, f.states(), []string{"127.0.0.1:8080/tcp4 ns/thief/web open"})
	})
}

func TestLimitOfForwards(t *testing.T) {
	t.Parallel()
	var services []Service
	for i := range 5 {
		services = append(services, in("ns", 9-i, nodePort("s"+itoa(i), 30000+i)))
	}
	cfg := Config{NodePorts: true, MaxForwards: 3, Static: []Static{{Name: "x", Protocol: "tcp", HostPort: 1}}}
	got, warnings := Wanted(Input{Services: services}, cfg)
	assert.DeepEqual(t, lines(got), []string{
		"127.0.0.1:1/tcp4>:1 static/x", "127.0.0.1:30002/tcp4>:30002 ns/s2/web", "127.0.0.1:30003/tcp4>:30003 ns/s3/web",
		"127.0.0.1:30004/tcp4>:30004 ns/s4/web"})
	assert.DeepEqual(t, warningLines(warnings), []string{
		"TooManyPorts ns/s0/web: limit of 3 forwarded ports reached", "TooManyPorts ns/s1/web: limit of 3 forwarded ports reached"})
}

// The choices that users of the cluster have by default.
func TestChoicesOfUsers(t *testing.T) {
	t.Parallel()
	pod := func(hostIP string) Pod {
		return Pod{Namespace: "ns", Name: "p", IPs: []string{"10.42.0.5"}, Ports: []PodPort{{HostPort: 8080, ContainerPort: 80, HostIP: hostIP}}}
	}
	eth := hosts("eth0", "192.0.2.7")
	base := Config{NodePorts: true, PodHostPorts: true, HostAddresses: eth}
	anywhere, none, named, wide := base, base, base, base
	anywhere.BindAnywhere = true
	none.AnnotationNamespaces = []string{}
	named.AnnotationNamespaces, named.BindAnywhere = []string{"ns"}, true
	wide.BindAddresses = addrs("0.0.0.0")
	bound := annotated(nodePort("a", 30001), "bind", "192.0.2.7")
	other := bound
	other.Namespace = "other"
	long := annotated(nodePort("a", 30001), "host-port", strings.Repeat("\x1b[2J\n", 1000))
	for name, tc := range map[string]struct {
		cfg  Config
		in   Input
		want string
	}{
		"bind elsewhere":                  {base, Input{Services: []Service{bound}}, ReasonNotAllowed},
		"bind where ports listen":         {base, Input{Services: []Service{annotated(nodePort("a", 30001), "bind", "127.0.0.1")}}, "127.0.0.1:30001/tcp4"},
		"bind to another loopback":        {base, Input{Services: []Service{annotated(nodePort("a", 30001), "bind", "127.0.0.2")}}, ReasonNotAllowed},
		"bind to all":                     {base, Input{Services: []Service{annotated(nodePort("a", 30001), "bind", "0.0.0.0")}}, ReasonNotAllowed},
		"bind to all, mapped":             {base, Input{Services: []Service{annotated(nodePort("a", 30001), "bind", "::ffff:0.0.0.0")}}, ReasonNotAllowed},
		"bind below all":                  {wide, Input{Services: []Service{bound}}, "192.0.2.7:30001/tcp4"},
		"bind elsewhere, allowed":         {anywhere, Input{Services: []Service{bound}}, "192.0.2.7:30001/tcp4"},
		"bind in a named namespace":       {named, Input{Services: []Service{bound}}, "192.0.2.7:30001/tcp4"},
		"bind in another namespace":       {named, Input{Services: []Service{other}}, ReasonNotAllowed},
		"host port":                       {base, Input{Services: []Service{annotated(nodePort("a", 30001), "host-port", "22000")}}, "127.0.0.1:22000/tcp4"},
		"host port, switched off":         {none, Input{Services: []Service{annotated(nodePort("a", 30001), "host-port", "22000")}}, ReasonNotAllowed},
		"no annotation, switched off":     {none, Input{Services: []Service{nodePort("a", 30001)}}, "127.0.0.1:30001/tcp4"},
		"nothing, switched off":           {none, Input{Services: []Service{annotated(nodePort("a", 30001), "forward", "false", "bind", "0.0.0.0")}}, ""},
		"port 0":                          {base, Input{Services: []Service{annotated(nodePort("a", 30001), "host-port", "0")}}, ReasonAnnotation},
		"port 65536":                      {base, Input{Services: []Service{annotated(nodePort("a", 30001), "host-port", "65536")}}, ReasonAnnotation},
		"an overlong and malformed value": {base, Input{Services: []Service{long}}, ReasonAnnotation},
		"hostIP elsewhere":                {base, Input{Pods: []Pod{pod("192.0.2.7")}}, ReasonNotAllowed},
		"hostIP elsewhere, allowed":       {anywhere, Input{Pods: []Pod{pod("192.0.2.7")}}, "192.0.2.7:8080/tcp4"},
		"hostIP below all":                {wide, Input{Pods: []Pod{pod("192.0.2.7")}}, "192.0.2.7:8080/tcp4"},
		"hostIP, all addresses":           {base, Input{Pods: []Pod{pod("0.0.0.0")}}, "127.0.0.1:8080/tcp4"},
		"hostIP, all addresses, mapped":   {base, Input{Pods: []Pod{pod("::ffff:0.0.0.0")}}, "127.0.0.1:8080/tcp4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, warnings := Wanted(tc.in, tc.cfg)
			all := ""
			for _, f := range got {
				all += f.String()
			}
			for _, w := range warnings {
				all += w.Reason
				assert.Assert(t, len(w.Message) < 1024 && !strings.ContainsAny(w.Message, "\x1b\n"), "%q", w.Message)
			}
			assert.Equal(t, all, tc.want, fmt.Sprint(warnings))
		})
	}
}

func TestExternalIPs(t *testing.T) {
	t.Parallel()
	s := external(Service{Namespace: "ns", Name: "c", Type: "ClusterIP", ClusterIPs: []string{"10.43.0.7"}, Ports: []ServicePort{{Name: "web", Port: 80}}},
		"192.0.2.7", "192.0.2.8", "198.51.100.1")
	off, on, some := everything(), everything(), everything()
	off.ExternalIPs = false
	some.ExternalIPRanges = prefixes("192.0.2.8/32")
	for _, tc := range []struct {
		cfg    Config
		want   int
		ignore int
	}{{off, 0, 1}, {on, 2, 0}, {some, 1, 1}, {Config{}, 0, 0}} {
		got, warnings := Wanted(Input{Services: []Service{s}}, tc.cfg)
		assert.Equal(t, len(got), tc.want)
		assert.Equal(t, len(warnings), tc.ignore)
		for _, w := range warnings {
			assert.Equal(t, w.Reason, ReasonExternalIPs)
		}
	}
	// Addresses that a user writes into the status or as loadBalancerIP are ignored.
	s.ExternalIPs, s.Ingress = nil, []string{"192.0.2.7"}
	got, _ := Wanted(Input{Services: []Service{s}}, on)
	assert.Equal(t, len(got), 0)
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// A holder also keeps its port number on another address, when the bind addresses change.
func TestHolderKeepsItsPortOnOtherAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lb := in("ns", 9, balanced("lb", ServicePort{Name: "web", Port: 8080, NodePort: 30080}))
		thief := in("ns", 1, annotated(nodePort("a-thief", 30001), "host-port", "8080"))
		src := newFakeSource(lb)
		cfg := Config{NodePorts: true, LoadBalancers: true}
		f := start(t, Options{Manager: newFakeManager(), Source: src, Config: cfg})
		synctest.Wait()
		src.set(thief)
		synctest.Wait()
		cfg.BindAddresses = addrs("0.0.0.0")
		f.SetConfig(cfg)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.DeepEqual(t, f.states(), []string{
			"0.0.0.0:8080/tcp4 ns/lb/web open", "0.0.0.0:8080/tcp4 ns/a-thief/web refused PortClash", "0.0.0.0:30080/tcp4 ns/lb/web open"})
	})
}

// A load balancer whose ports all belong to others has no address.
func TestRefusedLoadBalancerHasNoAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(balanced("first", ServicePort{Port: 81, NodePort: 30081}))
		p := &testPublisher{src: src}
		start(t, Options{Manager: newFakeManager(), Source: src, Publisher: p, Config: everything()})
		time.Sleep(time.Second)
		synctest.Wait()
		p.now(false)
		late := balanced("late", ServicePort{Port: 81, NodePort: 30082})
		late.Ingress = []string{"127.0.0.1"}
		src.set(late)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.DeepEqual(t, p.now(false), []string{"late[]"})
		src.remove("first")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.DeepEqual(t, p.now(false), []string{"late[127.0.0.1]"})
	})
}

// The expansion of a Service and its messages are bounded for any number of ports.
func TestManyPortsOfOneService(t *testing.T) {
	t.Parallel()
	s := balanced("lb")
	for i := range 20000 {
		s.Ports = append(s.Ports, ServicePort{Name: "p" + itoa(i), Port: 1 + i, NodePort: 30000})
		if i < 1000 {
			s.Ports[i].Protocol = "SCTP"
		}
	}
	again := s
	again.Name = "lc"
	cfg := everything()
	cfg.MaxForwards = 100
	got, warnings := Wanted(Input{Services: []Service{s, again}}, cfg)
	assert.Equal(t, len(got), 100)
	assert.Assert(t, len(warnings) < 2*(maxWarnings+4), "%d warnings", len(warnings))
	for _, w := range warnings {
		assert.Assert(t, len(w.Message) < 512, w.Message)
	}
	assert.Check(t, is.Contains(strings.Join(warningLines(warnings), "\n"), "TooManyPorts ns/lb/"))
	assert.Check(t, is.Contains(strings.Join(warningLines(warnings), "\n"), "and 992 more"))
}
