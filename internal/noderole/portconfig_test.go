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

// testConfig returns the configuration of a node on the host "host".
func testConfig() *config.NodeConfig {
	cfg := config.Default()
	cfg.Complete(config.HostFacts{Hostname: "host"})
	return cfg
}

// testPorts returns the port configuration of a node on a host with the given addresses.
func testPorts(t *testing.T, hosts ...layout.HostAddress) *portConfig {
	t.Helper()
	d := &portConfig{
		cfg: testConfig(), rt: layout.Runtime{Dir: t.TempDir()}, data: layout.NewData(t.TempDir()), log: logrus.New(), address: &nodeAddress{},
	}
	assert.NilError(t, layout.WriteJSON(d.rt.HostAddresses(), hosts))
	return d
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
	d := testPorts(t, hostAddress("eth0", "192.0.2.7"))
	d.cfg.Ports.Static = []string{"8080:30080", "127.0.0.1:5353-5354:30053-30054/udp", "0:80"}
	d.cfg.Ports.BindAddresses = []string{"127.0.0.1", "eth0", "wlan0"}
	d.cfg.Ports.PrivilegedPortOffset = 10000
	var got []portfwd.Config
	start := func(c portfwd.Config) error { got = append(got, c); return nil }
	stop, err := d.run(start, func(portfwd.Config) {}, nil)
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
	cfg, rt := config.Default(), layout.Runtime{Dir: "/run/n"}
	o := portSources(cfg, rt, nil, nil)
	assert.Assert(t, o.Source != nil && o.Endpoints != nil && o.Pods != nil && o.Publisher != nil)
	assert.Assert(t, o.SourceFilter == nil, "only the builtin driver has a source filter")
	cfg.Ports.Driver = config.PortsBuiltin
	assert.Assert(t, portSources(cfg, rt, nil, nil).SourceFilter != nil)
	assert.Equal(t, rt.SourcesSocket(), portdriver.SourcesSocket(rt.StateDir()))
	cfg.Ports = config.Ports{WaitForEndpoints: true}
	o = portSources(cfg, rt, nil, nil)
	assert.Assert(t, o.Source == nil && o.Endpoints == nil && o.Pods == nil && o.Publisher == nil)
}

// TestPortConfigFollowsTheHost checks that changes of the host's addresses reach a running forwarder.
func TestPortConfigFollowsTheHost(t *testing.T) {
	t.Parallel()
	d := testPorts(t)
	d.cfg.Ports.BindAddresses = []string{"wlan0"}
	changes := make(chan portfwd.Config, 8)
	stop, err := d.run(func(c portfwd.Config) error { changes <- c; return nil }, func(c portfwd.Config) { changes <- c }, nil)
	assert.NilError(t, err)
	assert.Assert(t, len((<-changes).BindAddresses) == 0)
	assert.NilError(t, layout.WriteJSON(d.rt.HostAddresses(), []layout.HostAddress{hostAddress("wlan0", "192.0.2.8")}))
	for c := range changes {
		if fmt.Sprint(c.BindAddresses) == "[192.0.2.8]" {
			break
		}
	}
	stop()
	_, err = d.add("1:2") // no forwarder runs; not an error
	assert.NilError(t, err)
}

func TestFaultsOfPorts(t *testing.T) {
	t.Parallel()
	d := testPorts(t)
	faults := make(chan layout.Forwarding, 8)
	stop, err := d.run(func(portfwd.Config) error { return nil }, func(portfwd.Config) {}, func(f layout.Forwarding) { faults <- f })
	assert.NilError(t, err)
	defer stop()
	assert.Equal(t, len((<-faults).Faults), 0)
	full := layout.PortFault{HostIP: "127.0.0.1", HostPort: 30080, Proto: "tcp4", Reason: "TooManyConnections", Message: "new connections wait"}
	for _, want := range [][]layout.PortFault{{full}, {}} {
		assert.NilError(t, layout.WriteJSON(d.rt.PortFaults(), layout.Forwarding{Faults: want}))
		for now := range faults { // replacing the file may cause several events
			if len(now.Faults) == len(want) {
				break
			}
		}
	}
	assert.DeepEqual(t, portTroubles([]layout.PortFault{full}), map[portfwd.Bind]portfwd.Trouble{
		{Proto: "tcp4", IP: netip.MustParseAddr("127.0.0.1"), Port: 30080}: {Reason: "TooManyConnections", Message: "new connections wait"},
	}, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
	assert.Assert(t, forwardingCondition(layout.Forwarding{}).OK)
	use := &layout.DescriptorUse{Open: 900, Limit: 1024}
	c := forwardingCondition(layout.Forwarding{Descriptors: use})
	assert.Assert(t, c.OK && c.Warning && len(c.Steps) > 0)
	assert.Equal(t, c.Reason, "FewDescriptors")
	c = forwardingCondition(layout.Forwarding{Faults: []layout.PortFault{full}, Descriptors: use})
	assert.Assert(t, !c.OK && !c.Warning)
	assert.Equal(t, c.Reason+" "+c.Message, "TooManyConnections port 127.0.0.1:30080/tcp4: new connections wait; "+
		"900 of 1024 file descriptors of the node's parent process are open; each connection needs two")
}

func TestForwardsByHand(t *testing.T) {
	t.Parallel()
	d := testPorts(t)
	var now portfwd.Config
	run := func() func() {
		stop, err := d.run(func(c portfwd.Config) error { now = c; return nil }, func(c portfwd.Config) { now = c }, nil)
		assert.NilError(t, err)
		return stop
	}
	stop := run()
	for text, owner := range map[string]string{
		"8080:80": "manual/8080:80/tcp", "9000-9001:9000-9001/udp": "manual/9000-9001:9000-9001/udp", "0:7": "manual/0:7/tcp"} {
		got, err := d.add(text)
		assert.NilError(t, err)
		assert.Equal(t, got, owner)
	}
	_, err := d.add("8080:80/tcp") // exists already
	assert.NilError(t, err)
	assert.Equal(t, len(now.Static), 1+4)
	stop()

	d = &portConfig{cfg: d.cfg, rt: d.rt, data: d.data, log: d.log, address: d.address} // a new run
	stop = run()
	defer stop()
	assert.Equal(t, len(now.Static), 1+4)
	for _, text := range []string{"8080", "9000/udp", "0:7/tcp"} {
		_, err := d.remove(text)
		assert.NilError(t, err, text)
	}
	assert.Equal(t, len(now.Static), 1)
	raw, err := os.ReadFile(d.data.ManualPorts())
	assert.NilError(t, err)
	assert.Equal(t, string(raw), `{"format":1,"forwards":[]}`+"\n")
	assert.NilError(t, os.WriteFile(d.data.ManualPorts(), []byte(`["127.0.0.1:8080:30080/tcp"]`), 0o600)) // of an earlier version
	assert.NilError(t, d.readManual())
	assert.Equal(t, len(d.manual), 1)
	d.manual = nil

	_, err = d.add("80:x")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, `node port "x": must be a number`)
	_, err = d.add("6443:1")
	assert.Error(t, err, "127.0.0.1:6443/tcp4 is already forwarded for static/api")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	_, err = d.remove("6443")
	assert.Error(t, err, "manual forward 6443 not found")
	for _, text := range []string{"127.0.0.1:80:1", "127.0.0.2:80:1"} {
		_, err = d.add(text)
		assert.NilError(t, err)
	}
	_, err = d.remove("80")
	assert.Error(t, err, "port 80 matches 2 manual forwards")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	d.cfg.Ports.Driver = "none"
	_, err = d.add("1:2")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
}

func TestPortPolicy(t *testing.T) {
	t.Parallel()
	d := testPorts(t)
	c, err := d.config(nil)
	assert.NilError(t, err)
	assert.Assert(t, !c.ExternalIPs && !c.BindAnywhere && c.AnnotationNamespaces == nil)
	assert.Equal(t, c.MaxForwards, portfwd.DefaultMaxForwards)
	d.cfg.Ports.ExternalIPs = config.AddressRanges{"192.0.2.7"}
	d.cfg.Ports.Annotations = config.PortAnnotations{Namespaces: []string{}, Bind: true}
	c, err = d.config(nil)
	assert.NilError(t, err)
	assert.Assert(t, c.ExternalIPs && c.BindAnywhere && c.AnnotationNamespaces != nil && len(c.AnnotationNamespaces) == 0)
	assert.Equal(t, fmt.Sprint(c.ExternalIPRanges), "[192.0.2.7/32]")
}

// TestClash checks that only conflicts of manual forwards are errors.
func TestClash(t *testing.T) {
	t.Parallel()
	d := testPorts(t)
	d.cfg.Ports.Static = []string{"8080:80"}
	for manual, want := range map[string]string{
		"8081:80": "",
		"8080:81": "127.0.0.1:8080/tcp4 is already forwarded for static/8080/tcp",
	} {
		c, err := d.config([]string{manual})
		assert.NilError(t, err)
		err = clash(c)
		if want == "" {
			assert.NilError(t, err)
			continue
		}
		assert.Error(t, err, want)
		assert.ErrorIs(t, err, errdefs.ErrConfig)
	}
	d.cfg.Ports.Static = []string{"8080:80", "8080:81"}
	c, err := d.config(nil)
	assert.NilError(t, err)
	assert.NilError(t, clash(c), "of the config")
}
