package portfwd

import (
	"fmt"
	"net/netip"
	"testing"

	"gotest.tools/v3/assert"
)

func hosts(list ...string) []HostAddress {
	var out []HostAddress
	for i := 0; i < len(list); i += 2 {
		out = append(out, HostAddress{list[i], netip.MustParseAddr(list[i+1])})
	}
	return out
}

func balanced(name string, ports ...ServicePort) Service {
	return Service{Namespace: "ns", Name: name, Type: "LoadBalancer", IPFamilies: []string{"IPv4"}, ClusterIPs: []string{"10.43.0.9"}, Ports: ports}
}

func annotated(s Service, kv ...string) Service {
	s.Annotations = map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		s.Annotations[AnnotationPrefix+kv[i]] = kv[i+1]
	}
	return s
}

func external(s Service, ips ...string) Service {
	s.ExternalIPs = ips
	return s
}

// everything is a config that forwards everything.
func everything() Config {
	return Config{
		NodePorts: true, LoadBalancers: true, ExternalIPs: true, PodHostPorts: true, HostNetworkPods: true, BindAnywhere: true,
		HostAddresses: hosts("lo", "127.0.0.1", "eth0", "192.0.2.7", "eth0", "2001:db8::7", "eth0", "fe80::1", "wlan0", "192.0.2.8"),
	}
}

func TestWantedOfServices(t *testing.T) {
	t.Parallel()
	web := ServicePort{Name: "web", Port: 80, NodePort: 30080}
	dns := []ServicePort{{Name: "t", Protocol: "TCP", Port: 53, NodePort: 30053}, {Name: "u", Protocol: "UDP", Port: 53, NodePort: 30053}}
	foreign := balanced("lb", web)
	foreign.LoadBalancerClass = "example.com/other"
	ours := balanced("lb", web)
	ours.LoadBalancerClass = LoadBalancerClass
	local := balanced("lb", web)
	local.ExternalTrafficPolicy, local.HealthCheckNodePort = "Local", 31000
	clusterIP := Service{Namespace: "ns", Name: "c", Type: "ClusterIP", ClusterIPs: []string{"10.43.0.7"}, Ports: []ServicePort{{Name: "web", Port: 80}}}
	external6 := external(clusterIP, "2001:db8::7", "192.0.2.7", "198.51.100.1")
	headless := external(clusterIP, "192.0.2.7")
	headless.ClusterIPs = []string{"None"}
	name := external(clusterIP, "192.0.2.7")
	name.Type = "ExternalName"
	wildcard, offset, off, both := everything(), everything(), everything(), everything()
	wildcard.BindAddresses = addrs("0.0.0.0")
	offset.PrivilegedPortOffset = 10000
	off.LoadBalancers, off.ExternalIPs, off.NodePorts = false, false, false
	both.BindAddresses = addrs("127.0.0.1", "::1")
	for about, tc := range map[string]struct {
		s        Service
		cfg      Config
		want     []string
		warnings []string
	}{
		"load balancer": {s: balanced("lb", web), want: []string{
			"127.0.0.1:80/tcp4>:30080 ns/lb/web", "127.0.0.1:30080/tcp4>:30080 ns/lb/web"}},
		"own class":     {s: ours, want: []string{"127.0.0.1:80/tcp4>:30080 ns/lb/web", "127.0.0.1:30080/tcp4>:30080 ns/lb/web"}},
		"another class": {s: foreign, want: []string{"127.0.0.1:30080/tcp4>:30080 ns/lb/web"}},
		"switched off":  {s: external(balanced("lb", web), "192.0.2.7"), cfg: off},
		"without node ports it goes to the cluster address": {s: balanced("lb", ServicePort{Port: 80}), want: []string{
			"127.0.0.1:80/tcp4>10.43.0.9:80 ns/lb/80"}},
		"health check port": {s: local, want: []string{
			"127.0.0.1:80/tcp4>:30080 ns/lb/web", "127.0.0.1:30080/tcp4>:30080 ns/lb/web", "127.0.0.1:31000/tcp4>:31000 ns/lb/health-check"}},
		"offset": {s: balanced("lb", web, ServicePort{Name: "alt", Port: 8080, NodePort: 30081}), cfg: offset, want: []string{
			"127.0.0.1:8080/tcp4>:30081 ns/lb/alt", "127.0.0.1:10080/tcp4>:30080 ns/lb/web",
			"127.0.0.1:30080/tcp4>:30080 ns/lb/web", "127.0.0.1:30081/tcp4>:30081 ns/lb/alt"}},
		"own external addresses": {s: external(clusterIP, "192.0.2.7", "198.51.100.1", "192.0.2.8"), want: []string{
			"192.0.2.7:80/tcp4>10.43.0.7:80 ns/c/web", "192.0.2.8:80/tcp4>10.43.0.7:80 ns/c/web"}},
		"an external address without a cluster address of its family": {s: external6, want: []string{"192.0.2.7:80/tcp4>10.43.0.7:80 ns/c/web"}},
		"headless":      {s: headless},
		"external name": {s: name},
		"covered external address": {s: external(balanced("lb", web), "192.0.2.7"), cfg: wildcard, want: []string{
			"0.0.0.0:80/tcp4>:30080 ns/lb/web", "0.0.0.0:30080/tcp4>:30080 ns/lb/web"}},
		"a port that is its own node port": {s: balanced("lb", ServicePort{Port: 30080, NodePort: 30080}), want: []string{
			"127.0.0.1:30080/tcp4>:30080 ns/lb/30080"}},
		"forward: false": {s: annotated(balanced("lb", web), "forward", "false")},
		"forward: true":  {s: annotated(nodePort("a", 30001), "forward", "true"), want: []string{"127.0.0.1:30001/tcp4>:30001 ns/a/web"}},
		"bind":           {s: annotated(nodePort("a", 30001), "bind", "192.0.2.8, 127.0.0.1"), want: []string{"127.0.0.1:30001/tcp4>:30001 ns/a/web", "192.0.2.8:30001/tcp4>:30001 ns/a/web"}},
		"bind to an interface, of the Service's families": {s: annotated(nodePort("a", 30001), "bind", "eth0"), want: []string{
			"192.0.2.7:30001/tcp4>:30001 ns/a/web"}},
		"host port of a node port": {s: annotated(nodePort("a", 30001), "host-port", "8080"), want: []string{
			"127.0.0.1:8080/tcp4>:30001 ns/a/web"}},
		"host port of a load balancer": {s: annotated(balanced("lb", web), "host-port", "8080"), want: []string{
			"127.0.0.1:8080/tcp4>:30080 ns/lb/web", "127.0.0.1:30080/tcp4>:30080 ns/lb/web"}},
		"host port of both protocols": {s: annotated(balanced("dns", dns...), "host-port", "5353"), cfg: Config{LoadBalancers: true}, want: []string{
			"127.0.0.1:5353/tcp4>:30053 ns/dns/t", "127.0.0.1:5353/udp4>:30053 ns/dns/u"}},
		"host ports by name and number": {
			s:   annotated(balanced("lb", web, ServicePort{Port: 443, NodePort: 30443}), "host-port", "web=8080, 443=8443"),
			cfg: Config{LoadBalancers: true}, want: []string{
				"127.0.0.1:8080/tcp4>:30080 ns/lb/web", "127.0.0.1:8443/tcp4>:30443 ns/lb/443"}},
		"malformed forward": {s: annotated(nodePort("a", 30001), "forward", "no"), warnings: []string{
			`AnnotationInvalid ns/a/: not forwarded to the host: annotation rootlessnode.dev/forward: invalid value "no": must be true or false`}},
		"malformed bind": {s: annotated(nodePort("a", 30001), "bind", "eth9"), warnings: []string{
			`AnnotationInvalid ns/a/: not forwarded to the host: annotation rootlessnode.dev/bind: "eth9" is neither an IP address nor a host interface with an address`}},
		"malformed host port": {s: annotated(nodePort("a", 30001), "host-port", "80a"), warnings: []string{
			`AnnotationInvalid ns/a/: not forwarded to the host: annotation rootlessnode.dev/host-port: invalid port "80a": must be between 1 and 65535`}},
		"ambiguous host port": {s: annotated(balanced("lb", web, ServicePort{Port: 443}), "host-port", "8080"), warnings: []string{
			`AnnotationInvalid ns/lb/: not forwarded to the host: annotation rootlessnode.dev/host-port: 8080 is ambiguous because the Service has 2 ports; use NAME=8080`}},
		"host port of an unknown port": {s: annotated(nodePort("a", 30001), "host-port", "wbe=8080"), warnings: []string{
			`AnnotationInvalid ns/a/: not forwarded to the host: annotation rootlessnode.dev/host-port: the Service has no port "wbe"`}},
		"annotations of a Service without forwarded ports are ignored": {s: annotated(clusterIP, "forward", "no")},
		"dual stack": {
			s:   Service{Namespace: "ns", Name: "d", Type: "NodePort", IPFamilies: []string{"IPv6", "IPv4"}, Ports: []ServicePort{web}},
			cfg: both, want: []string{"127.0.0.1:30080/tcp4>:30080 ns/d/web", "[::1]:30080/tcp6>:30080 ns/d/web"}},
	} {
		t.Run(about, func(t *testing.T) {
			t.Parallel()
			cfg := tc.cfg
			if !cfg.LoadBalancers && about != "switched off" {
				cfg = everything()
			}
			got, warnings := Wanted(Input{Services: []Service{tc.s}}, cfg)
			assert.DeepEqual(t, lines(got), append([]string{}, tc.want...))
			assert.DeepEqual(t, warningLines(warnings), append([]string{}, tc.warnings...))
		})
	}
}

func TestWantedOfPods(t *testing.T) {
	t.Parallel()
	pod := func(ports ...PodPort) Pod {
		return Pod{Namespace: "ns", Name: "p", IPs: []string{"10.42.0.5", "fd00:42::5"}, Ports: ports}
	}
	hostNet := pod(PodPort{Name: "web", ContainerPort: 8080}, PodPort{ContainerPort: 9, Protocol: "SCTP"})
	hostNet.HostNetwork, hostNet.IPs = true, []string{"10.0.2.100"}
	pending := pod(PodPort{HostPort: 80, ContainerPort: 8080})
	pending.IPs = nil
	quiet, silly, bound := pod(PodPort{HostPort: 80, ContainerPort: 8080}), pod(PodPort{HostPort: 80, ContainerPort: 8080}), pod(PodPort{HostPort: 80, ContainerPort: 8080})
	quiet.Annotations = map[string]string{AnnotationForward: "false"}
	silly.Annotations = map[string]string{AnnotationHostPort: "81"}
	bound.Annotations = map[string]string{AnnotationBind: "eth0"}
	both, off := everything(), everything()
	both.BindAddresses = addrs("127.0.0.1", "::1")
	off.PodHostPorts, off.HostNetworkPods = false, false
	for about, tc := range map[string]struct {
		pod      Pod
		cfg      Config
		want     []string
		warnings []string
	}{
		"host port": {pod: pod(PodPort{Name: "web", HostPort: 8081, ContainerPort: 80}, PodPort{ContainerPort: 81}), cfg: everything(),
			want: []string{"127.0.0.1:8081/tcp4>10.42.0.5:80 pod:ns/p/web"}},
		"both families": {pod: pod(PodPort{HostPort: 53, ContainerPort: 53, Protocol: "UDP"}), cfg: both,
			want: []string{"127.0.0.1:53/udp4>10.42.0.5:53 pod:ns/p/53", "[::1]:53/udp6>[fd00:42::5]:53 pod:ns/p/53"}},
		"an address of its own": {pod: pod(PodPort{HostPort: 80, ContainerPort: 80, HostIP: "192.0.2.8"}), cfg: everything(),
			want: []string{"192.0.2.8:80/tcp4>10.42.0.5:80 pod:ns/p/80"}},
		"an address of another host": {pod: pod(PodPort{HostPort: 80, ContainerPort: 80, HostIP: "198.51.100.1"}), cfg: everything(),
			warnings: []string{"AddressNotAvailable pod:ns/p/80: not forwarded to the host: hostIP 198.51.100.1 is not an address of the host"}},
		"no address yet": {pod: pending, cfg: everything(), want: []string{"127.0.0.1:80/tcp4>:8080 pod:ns/p/8080"}},
		"left out":       {pod: quiet, cfg: everything()},
		"bind": {pod: bound, cfg: everything(),
			want: []string{"192.0.2.7:80/tcp4>10.42.0.5:8080 pod:ns/p/8080", "[2001:db8::7]:80/tcp6>[fd00:42::5]:8080 pod:ns/p/8080"}},
		"a Service's annotation": {pod: silly, cfg: everything(), warnings: []string{
			"AnnotationInvalid pod:ns/p/: not forwarded to the host: annotation rootlessnode.dev/host-port: only valid for Services; set hostPort in the ports of the pod instead"}},
		"host network": {pod: hostNet, cfg: everything(), want: []string{"127.0.0.1:8080/tcp4>:8080 pod:ns/p/web"}, warnings: []string{
			"ProtocolNotForwarded pod:ns/p/: not forwarded to the host: 9 (SCTP 9): only TCP and UDP are supported"}},
		"host network, switched off": {pod: hostNet, cfg: off},
		"switched off":               {pod: pod(PodPort{HostPort: 80, ContainerPort: 80}), cfg: off},
	} {
		t.Run(about, func(t *testing.T) {
			t.Parallel()
			got, warnings := Wanted(Input{Pods: []Pod{tc.pod}}, tc.cfg)
			assert.DeepEqual(t, bracketed(got), append([]string{}, tc.want...))
			assert.DeepEqual(t, warningLines(warnings), append([]string{}, tc.warnings...))
		})
	}
}

// bracketed is lines for addresses of both families.
func bracketed(forwards []Forward) []string {
	out := []string{}
	for _, f := range forwards {
		to := ":" + itoa(f.ChildPort)
		if f.ChildIP.IsValid() {
			to = netip.AddrPortFrom(f.ChildIP, uint16(f.ChildPort)).String()
		}
		out = append(out, fmt.Sprintf("%s>%s %s", f.Bind, to, f.Owner))
	}
	return out
}

func TestWantedWaitsForEndpoints(t *testing.T) {
	t.Parallel()
	dual := Service{Namespace: "ns", Name: "d", Type: "NodePort", IPFamilies: []string{"IPv4", "IPv6"}, Ports: []ServicePort{{Port: 80, NodePort: 30080}}}
	local := balanced("d", ServicePort{Port: 80, NodePort: 30080})
	local.ExternalTrafficPolicy, local.HealthCheckNodePort = "Local", 31000
	cfg := Config{NodePorts: true, BindAddresses: addrs("127.0.0.1", "::1")}
	for _, tc := range []struct {
		s       Service
		e       map[Key]Endpoints
		waiting string
	}{
		{dual, nil, "[false false]"},
		{dual, map[Key]Endpoints{}, "[true true]"},
		{dual, map[Key]Endpoints{{"ns", "d"}: {Ready4: true}}, "[false true]"},
		{dual, map[Key]Endpoints{{"ns", "d"}: {Ready6: true}}, "[true false]"},
		// The health check port is open in any case and reports that there is no endpoint.
		{local, map[Key]Endpoints{{"ns", "d"}: {Ready4: true}}, "[true false]"},
		{local, map[Key]Endpoints{{"ns", "d"}: {Ready4: true, Local4: true}}, "[false false]"},
	} {
		got, _ := Wanted(Input{Services: []Service{tc.s}, Endpoints: tc.e}, cfg)
		waiting := []bool{}
		for _, f := range got {
			waiting = append(waiting, f.Waiting)
		}
		assert.Equal(t, fmt.Sprint(waiting), tc.waiting, "%v", tc.e)
	}
}

// A listener on all addresses and a listener on one address exclude each other.
func TestWantedCovers(t *testing.T) {
	t.Parallel()
	all := func(name string) Service { return annotated(nodePort(name, 30001), "bind", "0.0.0.0") }
	one := func(name string, a string) Service { return annotated(nodePort(name, 30001), "bind", a) }
	six := nodePort("six", 30001)
	six.IPFamilies, six.Annotations = []string{"IPv6"}, map[string]string{AnnotationBind: "::1"}
	cfg := Config{NodePorts: true, BindAnywhere: true}
	for _, tc := range []struct {
		services       []Service
		want, warnings []string
	}{
		{[]Service{all("a"), one("b", "127.0.0.1"), six},
			[]string{"0.0.0.0:30001/tcp4>:30001 ns/a/web", "[::1]:30001/tcp6>:30001 ns/six/web"},
			[]string{"PortClash ns/b/web: 127.0.0.1:30001/tcp4 is already forwarded for ns/a/web"}},
		{[]Service{all("b"), one("c", "127.0.0.2"), one("a", "127.0.0.1")},
			[]string{"127.0.0.1:30001/tcp4>:30001 ns/a/web", "127.0.0.2:30001/tcp4>:30001 ns/c/web"},
			[]string{"PortClash ns/b/web: 0.0.0.0:30001/tcp4 is already forwarded for ns/a/web"}},
	} {
		got, warnings := Wanted(Input{Services: tc.services}, cfg)
		assert.DeepEqual(t, lines(got), tc.want)
		assert.DeepEqual(t, warningLines(warnings), tc.warnings)
	}
}

func TestIngress(t *testing.T) {
	t.Parallel()
	lb := balanced("lb", ServicePort{Port: 80})
	dual := lb
	dual.IPFamilies = []string{"IPv4", "IPv6"}
	foreign := lb
	foreign.LoadBalancerClass = "example.com/other"
	wild := everything()
	wild.BindAddresses = addrs("0.0.0.0", "::")
	alone := wild
	alone.HostAddresses = nil
	off := everything()
	off.LoadBalancers = false
	for _, tc := range []struct {
		s    Service
		cfg  Config
		want string
	}{
		{lb, everything(), "[127.0.0.1]"},
		{dual, wild, "[192.0.2.7 2001:db8::7]"},
		{dual, alone, "[127.0.0.1 ::1]"},
		{lb, off, "[]"},
		{foreign, everything(), "[]"},
		{nodePort("a", 30001), everything(), "[]"},
		{annotated(lb, "bind", "wlan0"), everything(), "[192.0.2.8]"},
		{annotated(lb, "forward", "false"), everything(), "[]"},
		{annotated(lb, "host-port", "x"), everything(), "[]"},
	} {
		assert.Equal(t, fmt.Sprint(Ingress(tc.s, tc.cfg)), tc.want)
	}
}

func FuzzParseChoices(f *testing.F) {
	f.Add("false", "eth0,127.0.0.1", "web=1,2=3")
	f.Add("x", "::ffff:1.2.3.4%eth0,", "=,")
	f.Fuzz(func(t *testing.T, forward, bind, ports string) {
		c, err := parseChoices("ns", map[string]string{AnnotationForward: forward, AnnotationBind: bind, AnnotationHostPort: ports}, everything())
		if err != nil {
			return
		}
		for _, a := range c.bind {
			assert.Assert(t, a.IsValid() && a.Zone() == "")
		}
		for _, p := range c.ports {
			assert.Assert(t, validPort(p))
		}
		assert.Assert(t, c.all == 0 || validPort(c.all))
	})
}
