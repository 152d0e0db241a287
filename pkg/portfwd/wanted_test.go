package portfwd

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

var sameAddr = cmpopts.EquateComparable(netip.Addr{})

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// lines formats forwards as "BIND>CHILDIP:PORT OWNER".
func lines(forwards []Forward) []string {
	out := []string{}
	for _, f := range forwards {
		child := ""
		if f.ChildIP.IsValid() {
			child = f.ChildIP.String()
		}
		out = append(out, f.String()+">"+child+":"+itoa(f.ChildPort)+" "+f.Owner.String())
	}
	return out
}

func warningLines(warnings []Warning) []string {
	out := []string{}
	for _, w := range warnings {
		out = append(out, w.Reason+" "+w.Owner.String()+": "+w.Message)
	}
	return out
}

func nodePort(name string, port int) Service {
	return Service{Namespace: "ns", Name: name, UID: "u-" + name, Type: "NodePort", IPFamilies: []string{"IPv4"},
		Ports: []ServicePort{{Name: "web", Protocol: "TCP", Port: 80, NodePort: port}}}
}

func TestWanted(t *testing.T) {
	t.Parallel()
	dns := Service{Namespace: "ns", Name: "dns", Type: "LoadBalancer", IPFamilies: []string{"IPv4", "IPv6"}, Ports: []ServicePort{
		{Name: "tcp", Protocol: "TCP", Port: 53, NodePort: 30053}, {Name: "udp", Protocol: "UDP", Port: 53, NodePort: 30053}}}
	six := nodePort("six", 30006)
	six.IPFamilies = []string{"IPv6"}
	phone := Service{Namespace: "ns", Name: "phone", Type: "NodePort", Ports: []ServicePort{
		{Name: "a", Protocol: "SCTP", Port: 1, NodePort: 30001}, {Name: "b", Protocol: "SCTP", Port: 2, NodePort: 30002}, {Port: 3, NodePort: 30003}}}
	cluster := nodePort("inner", 0)
	cluster.Type = "ClusterIP"
	for name, tc := range map[string]struct {
		services []Service
		cfg      Config
		want     []string
		warnings []string
	}{
		"nothing by default": {services: []Service{nodePort("a", 30001)}},
		"loopback by default": {
			services: []Service{nodePort("b", 30002), nodePort("a", 30001), cluster},
			cfg:      Config{NodePorts: true},
			want:     []string{"127.0.0.1:30001/tcp4>:30001 ns/a/web", "127.0.0.1:30002/tcp4>:30002 ns/b/web"},
		},
		"no node ports allocated": {
			services: []Service{{Namespace: "ns", Name: "lb", Type: "LoadBalancer", Ports: []ServicePort{{Port: 80}}}},
			cfg:      Config{NodePorts: true},
		},
		"both protocols, both families": {
			services: []Service{dns},
			cfg:      Config{NodePorts: true, BindAddresses: addrs("0.0.0.0", "::")},
			want: []string{
				"0.0.0.0:30053/tcp4>:30053 ns/dns/tcp", "0.0.0.0:30053/udp4>:30053 ns/dns/udp",
				"[::]:30053/tcp6>:30053 ns/dns/tcp", "[::]:30053/udp6>:30053 ns/dns/udp"},
		},
		"the unspecified address covers its family": {
			services: []Service{dns},
			cfg:      Config{NodePorts: true, BindAddresses: addrs("127.0.0.1", "0.0.0.0", "::1", "::ffff:10.1.2.3", "::1")},
			want: []string{
				"0.0.0.0:30053/tcp4>:30053 ns/dns/tcp", "0.0.0.0:30053/udp4>:30053 ns/dns/udp",
				"[::1]:30053/tcp6>:30053 ns/dns/tcp", "[::1]:30053/udp6>:30053 ns/dns/udp"},
		},
		"no address of the Service's family": {
			services: []Service{six},
			cfg:      Config{NodePorts: true},
			warnings: []string{"AddressFamilyNotForwarded ns/six/: not forwarded to the host: no bind address matches the IP families of the Service (IPv6)"},
		},
		"SCTP, once": {
			services: []Service{phone},
			cfg:      Config{NodePorts: true},
			want:     []string{"127.0.0.1:30003/tcp4>:30003 ns/phone/3"},
			warnings: []string{"ProtocolNotForwarded ns/phone/: not forwarded to the host: a (SCTP 30001), b (SCTP 30002): only TCP and UDP are supported"},
		},
		"static": {
			cfg: Config{BindAddresses: addrs("127.0.0.1", "::1"), Static: []Static{
				{Name: "api", Protocol: "tcp", HostPort: 6443, HostIP: netip.MustParseAddr("10.0.0.1"), ChildIP: netip.MustParseAddr("127.0.0.1")},
				{Protocol: "UDP", HostPort: 53, ChildPort: 30053},
				{Protocol: "sctp", HostPort: 7}, {Protocol: "tcp", HostPort: 0}, {Protocol: "tcp", HostPort: 70000}}},
			want: []string{
				"127.0.0.1:53/udp4>:30053 static/53/udp", "[::1]:53/udp6>:30053 static/53/udp",
				"10.0.0.1:6443/tcp4>127.0.0.1:6443 static/api"},
			warnings: []string{
				"PortInvalid static/0/tcp: invalid port mapping 0 to 0: ports must be between 1 and 65535",
				`ProtocolNotForwarded static/7/sctp: protocol "sctp" of port 7 cannot be forwarded: only tcp and udp are supported`,
				"PortInvalid static/70000/tcp: invalid port mapping 70000 to 70000: ports must be between 1 and 65535"},
		},
		"static goes first, then by name": {
			services: []Service{nodePort("c", 30001), nodePort("b", 30002), nodePort("a", 30002)},
			cfg:      Config{NodePorts: true, Static: []Static{{Name: "x", Protocol: "tcp", HostPort: 30001, ChildPort: 1}}},
			want:     []string{"127.0.0.1:30001/tcp4>:1 static/x", "127.0.0.1:30002/tcp4>:30002 ns/a/web"},
			warnings: []string{
				"PortClash ns/b/web: 127.0.0.1:30002/tcp4 is already forwarded for ns/a/web",
				"PortClash ns/c/web: 127.0.0.1:30001/tcp4 is already forwarded for static/x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, warnings := Wanted(Input{Services: tc.services}, tc.cfg)
			assert.DeepEqual(t, lines(got), append([]string{}, tc.want...))
			assert.DeepEqual(t, warningLines(warnings), append([]string{}, tc.warnings...))
		})
	}
}

func TestWantedIgnoresOrder(t *testing.T) {
	t.Parallel()
	var services []Service
	for i := range 60 {
		services = append(services, nodePort("s"+itoa(i), 30000+i%40))
	}
	cfg := Config{NodePorts: true, Static: []Static{{Name: "x", Protocol: "tcp", HostPort: 30005}}}
	want, warnings := Wanted(Input{Services: services}, cfg)
	assert.Equal(t, len(want), 40)
	assert.Equal(t, len(warnings), 21)
	for range 20 {
		rand.Shuffle(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
		got, w := Wanted(Input{Services: services}, cfg)
		assert.DeepEqual(t, got, want, sameAddr)
		assert.DeepEqual(t, w, warnings)
	}
}

func TestReasonOfAndHints(t *testing.T) {
	t.Parallel()
	at := func(ip string, port int) Bind { a := netip.MustParseAddr(ip); return Bind{family("tcp", a), a, port} }
	for _, tc := range []struct {
		text, reason, hint string
		bind               Bind
		cfg                Config
	}{
		{text: "listen tcp4 127.0.0.1:30080: bind: address already in use", reason: ReasonInUse, bind: at("127.0.0.1", 30080), hint: "ss -tnlp 'sport = :30080'"},
		{text: "conflict with ID 1", reason: ReasonClash, bind: at("127.0.0.1", 1), hint: "RootlessKit's API"},
		{text: "unsupported port protocol sctp", reason: ReasonProtocol, bind: at("127.0.0.1", 1), hint: "port.driver"},
		{text: "listen tcp4 10.9.9.9:80: bind: cannot assign requested address", reason: ReasonAddress, bind: at("10.9.9.9", 80), hint: "10.9.9.9 is not an address of this host"},
		{text: "socket: too many open files", reason: ReasonFiles, bind: at("127.0.0.1", 1), hint: "ulimit -n"},
		{text: "listen tcp6: address family not supported by protocol", reason: ReasonFamily, bind: at("::1", 1), hint: "network.ipv6"},
		{text: "something else", reason: ReasonFailed, bind: at("127.0.0.1", 1)},
		{
			text:   "cannot expose privileged port 80, you can add 'net.ipv4.ip_unprivileged_port_start=80' to /etc/sysctl.conf (currently 1000), or choose a larger port number (>= 1000): listen tcp4 127.0.0.1:80: bind: permission denied",
			reason: ReasonDenied, bind: at("127.0.0.1", 80), cfg: Config{UnprivilegedPortStart: 1024},
			hint: "net.ipv4.ip_unprivileged_port_start=1000); as root, either\n  sysctl -w net.ipv4.ip_unprivileged_port_start=80 ",
		},
		{text: "bind: permission denied", reason: ReasonDenied, bind: at("127.0.0.1", 80), cfg: Config{UnprivilegedPortStart: 1024}, hint: "use a port of 1024 or above"},
		{text: "bind: permission denied", reason: ReasonDenied, bind: at("127.0.0.1", 8080), hint: "sysctl net.ipv4.ip_unprivileged_port_start"},
	} {
		err := refuse(tc.text)
		assert.Equal(t, reasonOf(err), tc.reason, tc.text)
		hint := hintOf(tc.reason, tc.bind, tc.cfg, err.Error())
		assert.Check(t, is.Contains(hint, tc.hint))
		assert.Check(t, tc.hint != "" || hint == "")
		assert.Check(t, !strings.Contains(hint, "%!"))
	}
	assert.Equal(t, reasonOf(errLost), ReasonUnreachable)
}
