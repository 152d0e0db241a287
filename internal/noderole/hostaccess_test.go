package noderole

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
)

func TestHostAccessOpenings(t *testing.T) {
	t.Parallel()
	role := func(change func(*config.NodeConfig, *layout.NetworkInfo)) *hostAccess {
		c, info := config.Default(), layout.NetworkInfo{Driver: "slirp4netns", Interface: "tap0", DNS: []string{"10.0.2.3"}}
		change(c, &info)
		return newHostAccess(c, info, "", nil)
	}
	open := func(a *hostAccess) (out []string) {
		for _, o := range a.fixed {
			text := fmt.Sprint(o.ip, " ", o.proto, " ", o.port)
			if o.nodeOnly {
				text += " node"
			}
			out = append(out, strings.TrimPrefix(text, "invalid IP "))
		}
		return out
	}
	dns := []string{"10.0.2.3 udp 53", "10.0.2.3 tcp 53"}
	one := role(func(*config.NodeConfig, *layout.NetworkInfo) {})
	assert.DeepEqual(t, open(one), dns)
	named := role(func(c *config.NodeConfig, _ *layout.NetworkInfo) { c.Network.NameServers = []string{"192.0.2.2"} })
	assert.DeepEqual(t, open(named), append(dns, "192.0.2.2 udp 53", "192.0.2.2 tcp 53"))
	worker := role(func(c *config.NodeConfig, _ *layout.NetworkInfo) { c.Join.Server = "https://a.example:7443" })
	assert.DeepEqual(t, open(worker), append(dns, "tcp 10250", "udp 8472 node", "tcp 7443"))
	near := role(func(c *config.NodeConfig, _ *layout.NetworkInfo) { c.Join.Server = "https://192.0.2.2" })
	assert.DeepEqual(t, open(near), append(dns, "tcp 10250", "udp 8472 node", "192.0.2.2 tcp 443"))
	first := role(func(c *config.NodeConfig, _ *layout.NetworkInfo) {
		c.API = config.API{BindAddress: "192.0.2.2", Port: 6444}
	})
	assert.DeepEqual(t, open(first), append(dns, "tcp 10250", "udp 8472 node"))
	bridged := role(func(_ *config.NodeConfig, i *layout.NetworkInfo) {
		i.Driver, i.Interface, i.DNS = config.DriverLXCUserNIC, "eth0", []string{"10.0.3.1"}
	})
	assert.DeepEqual(t, open(bridged), []string{"udp 67 node", "10.0.3.1 udp 53", "10.0.3.1 tcp 53"})

	// If the host's loopback is allowed, the gateway is mapped to it.
	loopback := role(func(c *config.NodeConfig, i *layout.NetworkInfo) {
		c.Network.AllowHostLoopback, i.Gateway = true, "10.0.2.2"
	})
	addresses := func(texts ...string) (list []layout.HostAddress) {
		for _, s := range texts {
			list = append(list, layout.HostAddress{IP: netip.MustParseAddr(s)})
		}
		return list
	}
	list := addresses("127.0.0.1", "::1", "10.0.2.2", "fd00::2", "10.0.3.1", "192.0.2.2", "192.0.2.2", "fd00::7", "fe80::1", "2001:db8::2")
	one.setHost(list)
	assert.Equal(t, fmt.Sprint(one.host), "[10.0.2.2 10.0.3.1 192.0.2.2 2001:db8::2 fd00::2 fd00::7 fe80::1]")
	loopback.setHost(list)
	assert.Equal(t, fmt.Sprint(loopback.host), "[10.0.3.1 192.0.2.2 2001:db8::2 fd00::7 fe80::1]")

	one.setForwarded([]portfwd.PortStatus{
		{HostIP: "0.0.0.0", HostPort: 80, Proto: "tcp4", State: portfwd.StateOpen},
		{HostIP: "::", HostPort: 81, Proto: "tcp6", State: portfwd.StateOpen},
		{HostIP: "192.0.2.2", HostPort: 53, Proto: "udp4", State: portfwd.StateOpen},
		{HostIP: "192.0.2.2", HostPort: 5432, Proto: "tcp4", State: portfwd.StateFailed},
		{HostIP: "127.0.0.1", HostPort: 5433, Proto: "tcp4", State: portfwd.StateOpen},
		{HostIP: "192.0.2.2", HostPort: 8472, Proto: "udp4", State: portfwd.StateOpen, Owner: "static/pod-network"},
	})
	one.setHost(addresses("10.0.3.1", "192.0.2.2", "fe80::1", "2001:db8::2"))
	v4, err := hostRules("ip", "tap0", one.host, one.forwarded)
	assert.NilError(t, err)
	assert.Check(t, is.Contains(v4, "elements = { 10.0.3.1, 192.0.2.2 }"))
	assert.Check(t, is.Contains(v4, "elements = { 10.0.3.1 . tcp . 80, 192.0.2.2 . tcp . 80, 192.0.2.2 . udp . 53 }"))
	v6, err := hostRules("ip6", "tap0", one.host, one.forwarded)
	assert.NilError(t, err)
	assert.Check(t, is.Contains(v6, "elements = { 2001:db8::2 . tcp . 81, fe80::1 . tcp . 81 }"))
}

// TestHostAccessNotEnforced checks that the node starts without nft or its kernel support, and that the status has a
// warning.
func TestHostAccessNotEnforced(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cfg, file := config.Default(), layout.Runtime{Dir: t.TempDir()}.HostAddresses()
	assert.NilError(t, layout.WriteJSON(file, []layout.HostAddress{{IP: netip.MustParseAddr("192.0.2.2")}}))
	start := func() []string {
		a, warnings, err := startHostAccess(t.Context(), cfg, layout.NetworkInfo{}, file, nil)
		assert.NilError(t, err)
		assert.Assert(t, a == nil)
		return warnings
	}
	assert.Check(t, is.Contains(strings.Join(start(), "\n"), "network.allowHostAddresses: false is not enforced in family ip; "))
	cfg.Network.AllowHostAddresses = true
	assert.Check(t, is.Len(start(), 0))
	cfg.Network.AllowHostAddresses, cfg.Network.Driver = false, config.DriverNone
	assert.Check(t, is.Len(start(), 0))
}

// TestHostAccess tests the filter with network namespaces for a host and a pod, connected as in a node.
func TestHostAccess(t *testing.T) {
	t.Parallel()
	runInNode(t, "TestHostAccessInside")
}

// envInNode marks the process that acts as the node in runInNode.
const envInNode = "ROOTLESSNODE_TEST_IN_NODE"

// runInNode runs another test of this package as root of new user and network namespaces.
func runInNode(t *testing.T, test string) {
	t.Helper()
	testutil.Require(t, testutil.UserNS, testutil.Program("ip"), testutil.Program("nft"), testutil.Program("nsenter"))
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), envInNode+"=1", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	assert.NilError(t, err)
	assert.Check(t, is.Contains(string(out), "--- PASS: "+test))
}

// TestHostAccessInside is the part of TestHostAccess that runs in the node's network namespace.
func TestHostAccessInside(t *testing.T) {
	host, pod := connectNode(t)
	host.do(t, func() {
		for _, ip := range []string{"192.0.2.2", "192.0.2.3", "198.51.100.1", "2001:db8::2", "2001:db8:1::1"} {
			serveEcho(t, net.JoinHostPort(ip, "7000"))
			serveEcho(t, net.JoinHostPort(ip, "53"))
		}
	})
	serveEcho(t, "192.0.2.100:7001")
	serveEcho(t, "[2001:db8::100]:7001")

	file := layout.Runtime{Dir: t.TempDir()}.HostAddresses()
	network := layout.NetworkInfo{Driver: config.DriverSlirp, Interface: "up0", DNS: []string{"192.0.2.2", "2001:db8::2"}}
	setAddresses := func(addresses ...string) {
		var list []layout.HostAddress
		for _, s := range addresses {
			list = append(list, layout.HostAddress{Interface: "h0", IP: netip.MustParseAddr(s)})
		}
		assert.NilError(t, layout.WriteJSON(file, list))
	}
	from := map[string]func(f func()){"the node": func(f func()) { f() }, "a pod": func(f func()) { pod.do(t, f) }}
	try := func(address string, want error) {
		t.Helper()
		for name, in := range from {
			for _, network := range []string{"tcp", "udp"} {
				in(func() {
					err := echo(network, address)
					if want == nil {
						assert.Check(t, err, "%s to %s from %s", network, address, name)
					} else {
						assert.Check(t, isRefused(err), "%s to %s from %s: %v", network, address, name, err)
					}
				})
			}
		}
	}

	setAddresses("127.0.0.1", "192.0.2.2", "2001:db8::2")
	try("192.0.2.2:7000", nil) // before the filter is loaded
	try("[2001:db8::2]:7000", nil)
	access, warnings, err := startHostAccess(t.Context(), config.Default(), network, file, nil)
	assert.NilError(t, err)
	assert.Assert(t, access != nil, warnings)
	script(t, "ip neigh flush all\nip -6 neigh flush all\n") // neighbour discovery must still work
	refused := errors.New("refused")
	try("192.0.2.2:7000", refused)
	try("[2001:db8::2]:7000", refused)
	for _, address := range []string{"192.0.2.2:53", "[2001:db8::2]:53", "198.51.100.1:7000", "[2001:db8:1::1]:7000", "192.0.2.3:7000"} {
		try(address, nil)
	}
	host.do(t, func() { // the host can still connect to the node
		for _, address := range []string{"192.0.2.100:7001", "[2001:db8::100]:7001"} {
			assert.Check(t, echo("tcp", address))
			assert.Check(t, echo("udp", address))
		}
	})

	// A port for the node only is closed to pods.
	access.fixed = append(access.fixed, allowedPort{proto: "udp", port: 7000, nodeOnly: true})
	assert.NilError(t, access.apply(t.Context()))
	assert.Check(t, echo("udp", "192.0.2.2:7000"))
	assert.Check(t, isRefused(echo("tcp", "192.0.2.2:7000")))
	pod.do(t, func() { assert.Check(t, isRefused(echo("udp", "192.0.2.2:7000"))) })
	access.fixed = access.fixed[:len(access.fixed)-1]

	// A forwarded port is open as long as it is forwarded.
	access.setForwarded([]portfwd.PortStatus{
		{HostIP: "0.0.0.0", HostPort: 7000, Proto: "tcp4", State: portfwd.StateOpen}, {HostIP: "0.0.0.0", HostPort: 7000, Proto: "udp4", State: portfwd.StateOpen},
	})
	<-access.wake
	assert.NilError(t, access.apply(t.Context()))
	try("192.0.2.2:7000", nil)
	try("[2001:db8::2]:7000", refused)
	access.setForwarded(nil)
	assert.NilError(t, access.apply(t.Context()))
	try("192.0.2.2:7000", refused)

	// The host's addresses change.
	setAddresses("127.0.0.1", "192.0.2.3")
	assert.NilError(t, access.read())
	assert.NilError(t, access.apply(t.Context()))
	try("192.0.2.3:7000", refused)
	try("192.0.2.2:7000", nil)
}

// connectNode connects the network namespace of the calling process, as that of a node, to the namespaces of a host and a
// pod. Tests that are not started by runInNode are skipped.
func connectNode(t *testing.T) (host, pod netNS) {
	t.Helper()
	if os.Getenv(envInNode) == "" {
		t.Skip("part of another test")
	}
	host, pod = newNetNS(t), newNetNS(t)
	script(t, fmt.Sprintf(`
ip link set lo up
ip link add up0 type veth peer name h0 netns %[1]d
ip link add pod0 type veth peer name p0 netns %[2]d
ip addr add 192.0.2.100/24 dev up0
ip addr add 2001:db8::100/64 dev up0 nodad
ip addr add 10.42.0.1/24 dev pod0
ip addr add fd42::1/64 dev pod0 nodad
ip link set up0 up
ip link set pod0 up
ip route add default via 192.0.2.2
ip -6 route add default via 2001:db8::2
nsenter -t %[1]d -n ip link set lo up
nsenter -t %[1]d -n ip addr add 192.0.2.2/24 dev h0
nsenter -t %[1]d -n ip addr add 192.0.2.3/24 dev h0
nsenter -t %[1]d -n ip addr add 198.51.100.1/32 dev lo
nsenter -t %[1]d -n ip addr add 2001:db8::2/64 dev h0 nodad
nsenter -t %[1]d -n ip addr add 2001:db8:1::1/128 dev lo nodad
nsenter -t %[1]d -n ip link set h0 up
nsenter -t %[1]d -n ip route add 10.42.0.0/24 via 192.0.2.100
nsenter -t %[1]d -n ip -6 route add fd42::/64 via 2001:db8::100
nsenter -t %[2]d -n ip addr add 10.42.0.2/24 dev p0
nsenter -t %[2]d -n ip addr add fd42::2/64 dev p0 nodad
nsenter -t %[2]d -n ip link set p0 up
nsenter -t %[2]d -n ip route add default via 10.42.0.1
nsenter -t %[2]d -n ip -6 route add default via fd42::1
`, host.pid, pod.pid))
	for _, s := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		assert.NilError(t, os.WriteFile(filepath.Join("/proc/sys", s), []byte("1"), 0o644))
	}
	return host, pod
}

// netNS is a network namespace that a process keeps alive.
type netNS struct{ pid int }

func newNetNS(t *testing.T) netNS {
	t.Helper()
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNET}
	assert.NilError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return netNS{cmd.Process.Pid}
}

// do runs f in the namespace. Sockets that f creates stay in it.
func (n netNS) do(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	assert.NilError(t, err)
	defer own.Close()
	other, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", n.pid))
	assert.NilError(t, err)
	defer other.Close()
	assert.NilError(t, unix.Setns(int(other.Fd()), unix.CLONE_NEWNET))
	defer func() { assert.NilError(t, unix.Setns(int(own.Fd()), unix.CLONE_NEWNET)) }()
	f()
}

func script(t *testing.T, commands string) {
	t.Helper()
	for line := range strings.Lines(commands) {
		if f := strings.Fields(line); len(f) > 0 {
			out, err := exec.Command(f[0], f[1:]...).CombinedOutput()
			assert.NilError(t, err, "%s: %s", line, out)
		}
	}
}

// serveEcho serves TCP and UDP echo at an address until the test ends.
func serveEcho(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	assert.NilError(t, err)
	p, err := net.ListenPacket("udp", address)
	assert.NilError(t, err)
	t.Cleanup(func() { _ = l.Close(); _ = p.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.CopyN(c, c, 1)
			_ = c.Close()
		}
	}()
	go func() {
		for b := make([]byte, 1); ; {
			_, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = p.WriteTo(b, from)
		}
	}()
}

// echo sends a byte to an echo server and reads it back. The dialer has no fallback addresses, so it connects in the
// calling thread's namespace.
func echo(network, address string) error {
	d := net.Dialer{Timeout: 5 * time.Second, FallbackDelay: -1}
	c, err := d.Dial(network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

// isRefused reports whether the connection was rejected rather than timed out.
func isRefused(err error) bool {
	var e syscall.Errno
	return errors.As(err, &e) && e != syscall.ETIMEDOUT && !errors.Is(err, os.ErrDeadlineExceeded)
}
