package noderole

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
)

// portsNode returns a node role in which only port forwarding works.
func portsNode(t *testing.T, hosts ...layout.HostAddress) *nodeRole {
	t.Helper()
	n := &nodeRole{cfg: config.Default(), rt: layout.Runtime{Dir: t.TempDir()}, data: layout.NewData(t.TempDir()), log: logrus.New()}
	n.cfg.Complete(config.HostFacts{Hostname: "host"})
	assert.NilError(t, layout.WriteJSON(n.rt.HostAddresses(), hosts))
	return n
}

func hostAddress(name, ip string) layout.HostAddress {
	return layout.HostAddress{Interface: name, IP: netip.MustParseAddr(ip)}
}

func specs(c portfwd.Config) []string {
	var out []string
	for _, s := range c.Static {
		kind := "static"
		if s.Manual {
			kind = "manual"
		}
		out = append(out, fmt.Sprintf("%s %q %s %d:%d", kind, s.Name, s.Protocol, s.HostPort, s.ChildPort))
	}
	return out
}

func TestPortConfig(t *testing.T) {
	t.Parallel()
	n := portsNode(t, hostAddress("eth0", "192.0.2.7"))
	n.cfg.Ports.Static = []string{"8080:30080", "127.0.0.1:5353-5354:30053-30054/udp", "0:80"}
	n.cfg.Ports.BindAddresses = []string{"127.0.0.1", "eth0", "wlan0"}
	n.cfg.Ports.PrivilegedPortOffset = 10000
	var got []portfwd.Config
	start := func(c portfwd.Config) error { got = append(got, c); return nil }
	stop, err := n.ports.run(n, start, func(portfwd.Config) {}, nil)
	assert.NilError(t, err)
	defer stop()
	c := got[0]
	assert.DeepEqual(t, specs(c), []string{
		`static "api" tcp 6443:6443`, `static "" tcp 8080:30080`, `static "" udp 5353:30053`, `static "" udp 5354:30054`, `static "0:80/tcp" tcp 0:80`})
	assert.Equal(t, fmt.Sprint(c.BindAddresses), "[127.0.0.1 192.0.2.7]")
	assert.Assert(t, c.NodePorts && c.LoadBalancers && !c.ExternalIPs && c.PodHostPorts && !c.HostNetworkPods)
	assert.Equal(t, c.PrivilegedPortOffset, 10000)
	assert.Equal(t, c.PickLast, 29999)
}

func TestPortSources(t *testing.T) {
	t.Parallel()
	n := &nodeRole{cfg: config.Default()}
	o := n.portSources()
	assert.Assert(t, o.Source != nil && o.Endpoints != nil && o.Pods != nil && o.Publisher != nil)
	assert.Assert(t, o.SourceFilter == nil, "only the builtin driver has a source filter")
	n.cfg.Ports.Driver = config.PortsBuiltin
	assert.Assert(t, n.portSources().SourceFilter != nil)
	assert.Equal(t, n.rt.SourcesSocket(), portdriver.SourcesSocket(n.rt.StateDir()))
	n.cfg.Ports = config.Ports{WaitForEndpoints: true}
	o = n.portSources()
	assert.Assert(t, o.Source == nil && o.Endpoints == nil && o.Pods == nil && o.Publisher == nil)
}

// TestPortConfigFollowsTheHost checks that changes of the host's addresses reach a running forwarder.
func TestPortConfigFollowsTheHost(t *testing.T) {
	t.Parallel()
	n := portsNode(t)
	n.cfg.Ports.BindAddresses = []string{"wlan0"}
	changes := make(chan portfwd.Config, 8)
	stop, err := n.ports.run(n, func(c portfwd.Config) error { changes <- c; return nil }, func(c portfwd.Config) { changes <- c }, nil)
	assert.NilError(t, err)
	assert.Assert(t, len((<-changes).BindAddresses) == 0)
	assert.NilError(t, layout.WriteJSON(n.rt.HostAddresses(), []layout.HostAddress{hostAddress("wlan0", "192.0.2.8")}))
	for c := range changes {
		if fmt.Sprint(c.BindAddresses) == "[192.0.2.8]" {
			break
		}
	}
	stop()
	_, err = n.ports.add(n, "1:2") // no forwarder runs; not an error
	assert.NilError(t, err)
}

func TestFaultsOfPorts(t *testing.T) {
	t.Parallel()
	n := portsNode(t)
	faults := make(chan []layout.PortFault, 8)
	stop, err := n.ports.run(n, func(portfwd.Config) error { return nil }, func(portfwd.Config) {}, func(f []layout.PortFault) { faults <- f })
	assert.NilError(t, err)
	defer stop()
	assert.Equal(t, len(<-faults), 0)
	full := layout.PortFault{HostIP: "127.0.0.1", HostPort: 30080, Proto: "tcp4", Reason: "TooManyConnections", Message: "new connections wait"}
	for _, want := range [][]layout.PortFault{{full}, {}} {
		assert.NilError(t, layout.WriteJSON(n.rt.PortFaults(), want))
		for now := range faults { // replacing the file may cause several events
			if len(now) == len(want) {
				break
			}
		}
	}
	assert.DeepEqual(t, portTroubles([]layout.PortFault{full}), map[portfwd.Bind]portfwd.Trouble{
		{Proto: "tcp4", IP: netip.MustParseAddr("127.0.0.1"), Port: 30080}: {Reason: "TooManyConnections", Message: "new connections wait"},
	}, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
	assert.Assert(t, portsCondition(nil).OK)
	c := portsCondition([]layout.PortFault{full})
	assert.Assert(t, !c.OK)
	assert.Equal(t, c.Message, "port 127.0.0.1:30080/tcp4: new connections wait")
}

func TestForwardsByHand(t *testing.T) {
	t.Parallel()
	n := portsNode(t)
	var now portfwd.Config
	run := func() func() {
		stop, err := n.ports.run(n, func(c portfwd.Config) error { now = c; return nil }, func(c portfwd.Config) { now = c }, nil)
		assert.NilError(t, err)
		return stop
	}
	stop := run()
	for text, owner := range map[string]string{
		"8080:80": "manual/8080:80/tcp", "9000-9001:9000-9001/udp": "manual/9000-9001:9000-9001/udp", "0:7": "manual/0:7/tcp"} {
		got, err := n.ports.add(n, text)
		assert.NilError(t, err)
		assert.Equal(t, got, owner)
	}
	_, err := n.ports.add(n, "8080:80/tcp") // exists already
	assert.NilError(t, err)
	assert.Equal(t, len(now.Static), 1+4)
	stop()

	n.ports = portConfig{} // a new run
	stop = run()
	defer stop()
	assert.Equal(t, len(now.Static), 1+4)
	for _, text := range []string{"8080", "9000/udp", "0:7/tcp"} {
		_, err := n.ports.remove(n, text)
		assert.NilError(t, err, text)
	}
	assert.Equal(t, len(now.Static), 1)
	raw, err := os.ReadFile(n.data.ManualPorts())
	assert.NilError(t, err)
	assert.Equal(t, string(raw), "[]\n")

	_, err = n.ports.add(n, "80:x")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, `node port "x": must be a number`)
	_, err = n.ports.add(n, "6443:1")
	assert.Error(t, err, "127.0.0.1:6443/tcp4 is already forwarded for static/api")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	_, err = n.ports.remove(n, "6443")
	assert.Error(t, err, "manual forward 6443 not found")
	for _, text := range []string{"127.0.0.1:80:1", "127.0.0.2:80:1"} {
		_, err = n.ports.add(n, text)
		assert.NilError(t, err)
	}
	_, err = n.ports.remove(n, "80")
	assert.Error(t, err, "port 80 matches 2 manual forwards")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	n.cfg.Ports.Driver = "none"
	_, err = n.ports.add(n, "1:2")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
}

func TestPortPolicy(t *testing.T) {
	t.Parallel()
	n := portsNode(t)
	c, err := n.ports.config(n)
	assert.NilError(t, err)
	assert.Assert(t, !c.ExternalIPs && !c.BindAnywhere && c.AnnotationNamespaces == nil)
	assert.Equal(t, c.MaxForwards, portfwd.DefaultMaxForwards)
	n.cfg.Ports.ExternalIPs = config.AddressRanges{"192.0.2.7"}
	n.cfg.Ports.Annotations = config.PortAnnotations{Namespaces: []string{}, Bind: true}
	c, err = n.ports.config(n)
	assert.NilError(t, err)
	assert.Assert(t, c.ExternalIPs && c.BindAnywhere && c.AnnotationNamespaces != nil && len(c.AnnotationNamespaces) == 0)
	assert.Equal(t, fmt.Sprint(c.ExternalIPRanges), "[192.0.2.7/32]")
}
