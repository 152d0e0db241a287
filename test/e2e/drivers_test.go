package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// lxcBridge requires that the account may have an interface on LXC's bridge, and that the bridge provides DHCP and DNS.
var lxcBridge = testutil.Requirement{Name: "lxc-bridge", Check: func() error {
	const bridge = "lxcbr0"
	if err := hostinfo.LXCBridgeFault("/", bridge); err != nil {
		return err
	}
	me, err := user.Current()
	if err != nil {
		return err
	}
	b, err := os.ReadFile(hostinfo.LXCUsernetFile)
	if err != nil {
		return err
	}
	for _, r := range hostinfo.ParseLXCUsernet(b) {
		if r.Owner == me.Username && r.Bridge == bridge {
			return nil
		}
	}
	return fmt.Errorf("%s has no row for %s", hostinfo.LXCUsernetFile, me.Username)
}}

// TestNetworkDrivers checks that nodes with each network driver, and with each of its port drivers, behave as
// docs/network-drivers.md describes. All other tests use slirp4netns with the builtin port driver.
func TestNetworkDrivers(t *testing.T) {
	t.Parallel()
	for i, d := range []struct {
		network, ports string
		needs          []testutil.Requirement
		// offline: pods cannot reach the host's network.
		offline bool
		// outV6: pods can reach the host's network over IPv6 too.
		outV6 bool
	}{
		{network: "pasta", ports: "auto", needs: []testutil.Requirement{testutil.Program("pasta")}, outV6: true},
		{network: "gvisor-tap-vsock", ports: "gvisor-tap-vsock"},
		{network: "slirp4netns", ports: "slirp4netns", needs: []testutil.Requirement{testutil.Program("slirp4netns")}, outV6: true},
		{network: "lxc-user-nic", ports: "auto", needs: []testutil.Requirement{lxcBridge}},
		{network: "none", ports: "auto", offline: true},
	} {
		t.Run(d.network+" with ports by "+d.ports, func(t *testing.T) {
			t.Parallel()
			testutil.Require(t, append(d.needs, ipv6)...)
			n := newNode(t, fmt.Sprintf("e2e-net%d", i),
				"--set", "network.driver="+d.network, "--set", "ports.driver="+d.ports, "--set", "network.ipv6=true")
			n.up()
			s := n.status().Network
			assert.Equal(t, s.Driver, d.network)
			assert.Assert(t, s.Address != "" && s.Interface != "" && s.PortDriverReason != "", "%+v", s)
			if d.ports != "auto" {
				assert.Equal(t, s.PortDriver, d.ports)
			}
			port := 30290 + i
			n.importImage()
			n.apply(fmt.Sprintf(webManifest, port))
			n.waitPod("web")
			n.answers(port)
			n.clusterDNS()
			n.answersV6(port, d.ports == "auto")
			n.outbound(hostAddress(t), !d.offline)
			n.outbound(hostAddressV6(t), d.outV6)
			n.hostLoopbackIsClosed()
			if d.network == "pasta" {
				n.uplinkKilled(slices.DeleteFunc([]string{hostAddress(t), hostAddressV6(t)}, func(ip string) bool { return ip == "" })...)
			}
			n.down()
			noTrace(t, n.name)
		})
	}
}

func (n *testNode) clusterDNS() {
	n.t.Helper()
	eventually(n.t, podLimit, "the Service's name resolves in a pod", func() error {
		return n.fetch("web.default.svc.cluster.local", "hello")
	})
}

// fetch sends a request to a web server from the pod web.
func (n *testNode) fetch(host, want string) error {
	out, stderr, code := n.try(podLimit, "kubectl", "exec", "web", "-c", "helper", "--", "netprobe", "get", "http://"+host+"/")
	if code != 0 || !strings.Contains(out, want) {
		return fmt.Errorf("exit %d: %s%s", code, out, stderr)
	}
	return nil
}

// serve starts a web server at an address of the host, which runs until the test ends, and returns the address with its port.
func (n *testNode) serve(ip, text string) string {
	n.t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	assert.NilError(n.t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, text) // the client reports an incomplete answer
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	n.t.Cleanup(func() { assert.Check(n.t, server.Close()); <-done })
	return l.Addr().String()
}

// answersV6 checks that the Service web answers over IPv6 in pods, and on the host's IPv6 loopback if the port driver forwards IPv6.
func (n *testNode) answersV6(port int, forwarded bool) {
	n.t.Helper()
	n.kubectl("patch", "service", "web", "--type=merge", "-p", `{"spec":{"ipFamilyPolicy":"RequireDualStack"}}`)
	ip := n.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIPs[1]}")
	eventually(n.t, podLimit, "the Service's IPv6 address in a pod", func() error { return n.fetch("["+ip+"]", "hello") })
	if forwarded {
		eventually(n.t, portsLimit, "the node port on ::1", func() error { return get("http://"+loopbackV6.port(port)+"/", "hello") })
	} else {
		assert.NilError(n.t, loopbackV6.refuses(port))
	}
}

// outbound checks whether a pod reaches an address of the host that is not loopback. If reachable is set, the pod must reach it once
// the node's rules against connections to the host are removed.
func (n *testNode) outbound(ip string, reachable bool) {
	n.t.Helper()
	if ip == "" {
		n.t.Log("this host has no such address")
		return
	}
	at := n.serve(ip, "hello from the host")
	err := n.fetch(at, "hello from the host")
	if !reachable {
		assert.ErrorContains(n.t, err, "netprobe: ")
		return
	}
	assert.ErrorContains(n.t, err, "connection refused", "network.allowHostAddresses is off")
	n.openHost(ip)
	assert.NilError(n.t, n.fetch(at, "hello from the host"))
}

// openHost deletes the rules that reject connections to addresses of the host. The node restores them when it forwards a port.
func (n *testNode) openHost(ip string) {
	n.t.Helper()
	family := "ip"
	if strings.Contains(ip, ":") {
		family = "ip6"
	}
	table := family + " rootlessnode-host"
	n.run(podLimit, "exec", "--", "nft", "add table "+table+"; delete table "+table) // succeeds without the table too
}

// hostLoopbackIsClosed checks that servers on the host's loopback cannot be reached at the address of the gateway or of the node.
func (n *testNode) hostLoopbackIsClosed() {
	n.t.Helper()
	_, port, err := net.SplitHostPort(n.serve("127.0.0.1", "the host's own"))
	assert.NilError(n.t, err)
	route := strings.Fields(n.run(podLimit, "exec", "--", "ip", "-4", "route", "show", "default"))
	assert.Assert(n.t, len(route) > 2 && route[1] == "via", "%v", route)
	for _, ip := range []string{route[2], n.status().Network.Address} {
		err := n.fetch(net.JoinHostPort(ip, port), "the host's own")
		if err == nil {
			err = errors.New("answered")
		}
		assert.Assert(n.t, cmp.Contains(err.Error(), "netprobe: "), "the host's loopback at %s", ip)
	}
}
