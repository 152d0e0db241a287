package parent

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/network/gvisortapvsock"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// The contract tests check each pair of drivers that the machine can run: a listener in a new user and network namespace, on the address
// of the tap device, must be reachable from the host.

// envPair is the pair, "NETWORK PORTS", that a process of this test binary tests.
const envPair = "ROOTLESSNODE_TEST_PAIR"

// pair is a network driver with a port driver and their known properties.
type pair struct {
	network, ports string
	programs       []string
	// udp is the size in bytes of the largest datagram that must be forwarded.
	udp int
	// keepsTCP and keepsUDP are set if the listener sees the address of a client that is not on loopback.
	keepsTCP, keepsUDP bool
	// deafUDP is set if answers to datagrams of a client on loopback are dropped. slirp4netns maps the host's loopback to the
	// gateway's address, and does not send there if the node must not reach the host's loopback.
	deafUDP bool
	// rootless is set if the test cannot run as root, because pasta changes from root to the user nobody.
	rootless bool
}

func pairs() []pair {
	const whole = 65507 // the largest datagram of IPv4: 65535 minus the headers of IP (20) and UDP (8)
	return []pair{
		{network: config.DriverSlirp, ports: config.PortsBuiltin, programs: []string{"slirp4netns", "nft"}, udp: whole, keepsTCP: true},
		{network: config.DriverPasta, ports: config.PortsBuiltin, programs: []string{"pasta", "nft"}, udp: whole, keepsTCP: true, rootless: true},
		{network: config.DriverNone, ports: config.PortsBuiltin, programs: []string{"nft"}, udp: whole, keepsTCP: true},
		{network: config.DriverSlirp, ports: config.DriverSlirp, programs: []string{"slirp4netns"}, udp: whole, keepsTCP: true, keepsUDP: true, deafUDP: true},
		{network: config.DriverGvisor, ports: config.DriverGvisor, udp: whole},
		{network: config.DriverPasta, ports: config.PortsPesto, programs: []string{"pasta", "pesto"}, udp: whole, keepsTCP: true, keepsUDP: true, rootless: true},
	}
}

// TestPortContract tests each pair in a separate process, because some drivers end only with their process.
func TestPortContract(t *testing.T) {
	t.Parallel()
	for _, p := range pairs() {
		t.Run(p.network+"/"+p.ports, func(t *testing.T) {
			t.Parallel()
			testutil.Require(t, testutil.UserNS, testutil.Program("ip"), testutil.Program("nsenter"))
			for _, program := range p.programs {
				testutil.Require(t, testutil.Program(program))
			}
			if p.rootless {
				testutil.Require(t, testutil.OrdinaryUser)
			}
			if p.network == config.DriverGvisor && !gvisortapvsock.Available {
				t.Skip("requirement: a build without the tag no_gvisortapvsock")
			}
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestPairOfDrivers$", "-test.v")
			cmd.Env = append(os.Environ(), envPair+"="+p.network+" "+p.ports)
			cmd.WaitDelay = 5 * time.Second
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			assert.NilError(t, err)
		})
	}
}

// TestPairOfDrivers runs in the process of one pair.
func TestPairOfDrivers(t *testing.T) {
	for _, p := range pairs() {
		if os.Getenv(envPair) == p.network+" "+p.ports {
			tryPair(t, p)
			return
		}
	}
	t.Skip("run by TestPortContract")
}

func tryPair(t *testing.T, p pair) {
	b := bring(t, p)
	t.Run("tcp and udp on the same port", b.bothProtocols)
	t.Run("list shows what was added", b.lists)
	t.Run("removed is closed", b.removes)
	t.Run("removed and added again with a connection open", b.again)
	t.Run("an address in use is an error", b.taken)
	t.Run("listens on the requested address", b.bindAddress)
	t.Run("size of datagrams", b.datagrams)
	t.Run("source addresses", b.sources)
	all, err := b.driver.ListPorts(t.Context())
	assert.NilError(t, err)
	assert.Equal(t, len(all), 0, "remaining ports: %v", all)
}

// at returns the address of the host for the forwards.
func (b *bench) at(t *testing.T) string {
	t.Helper()
	if !b.pair.deafUDP {
		return loopback
	}
	host := hostAddress(t)
	if host == "" {
		t.Skip("requirement: an address of the host other than loopback")
	}
	return host
}

func (b *bench) bothProtocols(t *testing.T) {
	at := b.at(t)
	p := freePorts(t, at)
	tcp, udp := b.open(t, "tcp4", at, p), b.open(t, "udp4", at, p)
	for _, proto := range []string{"tcp", "udp"} {
		answers(t, proto, at, p, "hello by "+proto)
	}
	b.close(t, tcp)
	answers(t, "udp", at, p, "still there")
	b.close(t, udp)
}

func (b *bench) lists(t *testing.T) {
	p := freePorts(t, loopback)
	st := b.open(t, "tcp4", loopback, p)
	all, err := b.driver.ListPorts(t.Context())
	assert.NilError(t, err)
	assert.DeepEqual(t, all, []port.Status{*st})
	assert.Equal(t, st.Spec.ParentPort, p)
	assert.Equal(t, st.Spec.ParentIP, loopback)
	assert.Equal(t, st.Spec.ChildPort, insidePort)
	b.close(t, st)
}

func (b *bench) removes(t *testing.T) {
	at := b.at(t)
	p := freePorts(t, at)
	tcp, udp := b.open(t, "tcp4", at, p), b.open(t, "udp4", at, p)
	answers(t, "tcp", at, p, "x")
	answers(t, "udp", at, p, "x")
	b.close(t, tcp)
	b.close(t, udp)
	_, _, err := ask("tcp", at, p, "x")
	assert.ErrorContains(t, err, "connection refused")
	_, _, err = ask("udp", at, p, "x")
	assert.ErrorContains(t, err, "connection refused")
	assert.Check(t, b.driver.RemovePort(t.Context(), 4711) != nil, "removing an unknown port must fail")
}

// again checks that a port in use can be removed and added again immediately.
func (b *bench) again(t *testing.T) {
	p := freePorts(t, loopback)
	for i := range 20 {
		st := b.open(t, "tcp4", loopback, p)
		c, err := net.Dial("tcp4", net.JoinHostPort(loopback, strconv.Itoa(p)))
		assert.NilError(t, err)
		_, answer, err := converse(c, "round "+strconv.Itoa(i))
		assert.NilError(t, err)
		assert.Equal(t, answer, "round "+strconv.Itoa(i))
		b.close(t, st)
		defer c.Close()
	}
}

func (b *bench) taken(t *testing.T) {
	l, err := net.Listen("tcp4", loopback+":0")
	assert.NilError(t, err)
	p := l.Addr().(*net.TCPAddr).Port
	spec := port.Spec{Proto: "tcp4", ParentIP: loopback, ParentPort: p, ChildIP: b.ip, ChildPort: insidePort}
	_, err = b.driver.AddPort(t.Context(), spec)
	assert.Assert(t, err != nil)
	t.Logf("error: %v", err)
	all, err := b.driver.ListPorts(t.Context())
	assert.NilError(t, err)
	assert.Equal(t, len(all), 0)
	assert.NilError(t, l.Close())
	b.close(t, b.open(t, "tcp4", loopback, p))
}

func (b *bench) bindAddress(t *testing.T) {
	const other = "127.0.0.2"
	p := freePorts(t, loopback)
	st := b.open(t, "tcp4", other, p)
	answers(t, "tcp", other, p, "here")
	_, _, err := ask("tcp", loopback, p, "x")
	assert.ErrorContains(t, err, "connection refused")
	b.close(t, st)
}

func (b *bench) datagrams(t *testing.T) {
	at := b.at(t)
	p := freePorts(t, at)
	st := b.open(t, "udp4", at, p)
	longest := 0
	for _, n := range []int{1, 512, 1472, 8000, 16000, 32000, 65507} {
		var passed bool
		for range 5 {
			if passed = b.datagram(t, at, p, n) == nil; passed {
				longest = n
				break
			}
		}
		assert.Check(t, passed || n > b.pair.udp, "a datagram of %d bytes is not forwarded", n)
		if !passed {
			break
		}
	}
	t.Logf("largest forwarded datagram: %d bytes", longest)
	b.close(t, st)
}

// sources logs and checks which address the listener sees as the client's.
func (b *bench) sources(t *testing.T) {
	host := hostAddress(t)
	for _, tc := range []struct {
		proto, ip string
		keeps     bool
	}{
		{"tcp", loopback, false}, {"udp", loopback, false},
		{"tcp", host, b.pair.keepsTCP}, {"udp", host, b.pair.keepsUDP},
	} {
		if tc.ip == "" {
			t.Log("this host has only loopback addresses")
			continue
		}
		p := freePorts(t, tc.ip)
		st := b.open(t, tc.proto+"4", tc.ip, p)
		if b.pair.deafUDP && tc.proto == "udp" && tc.ip == loopback {
			_, _, err := ask(tc.proto, tc.ip, p, "hello")
			assert.Check(t, err != nil, "UDP from loopback is answered: update docs/network-drivers.md")
			t.Log("source of udp from a client on loopback: not answered")
			b.close(t, st)
			continue
		}
		seen := answers(t, tc.proto, tc.ip, p, "hello")
		if tc.keeps { // the first connection through builtin sets up what the next ones need
			seen = answers(t, tc.proto, tc.ip, p, "hello")
		}
		client, err := netip.ParseAddrPort(seen)
		assert.NilError(t, err)
		where := "on loopback"
		if tc.ip != loopback {
			where = "elsewhere"
		}
		what := client.Addr().String()
		switch what {
		case tc.ip:
			what = "itself"
		case b.ip:
			what = "the node's address"
		}
		t.Logf("source of %s from a client %s: %s", tc.proto, where, what)
		if tc.keeps {
			assert.Equal(t, client.Addr().String(), tc.ip)
		}
		b.close(t, st)
	}
}
