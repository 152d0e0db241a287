package portdriver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/poll"

	"github.com/rootlessnode/rootlessnode/internal/relay"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// memberIP is the address of an allowed client, outsiderIP that of a client that is not allowed.
const memberIP, outsiderIP = "127.0.0.3", "127.0.0.4"

func ranges(s port.Spec, allowed ...string) SourceRange {
	r := SourceRange{Proto: s.Proto, IP: netip.MustParseAddr(s.ParentIP), Port: s.ParentPort}
	for _, text := range allowed {
		r.Allowed = append(r.Allowed, netip.MustParsePrefix(text))
	}
	return r
}

// restrict sets ranges through the socket, like the node role.
func restrict(t *testing.T, d port.ParentDriver, list ...SourceRange) {
	t.Helper()
	assert.NilError(t, SetSources(t.Context(), d.(*driver).sourcesSocket, list))
}

// dialFrom connects to a port from a given client address.
func dialFrom(t *testing.T, from string, s port.Spec) net.Conn {
	t.Helper()
	ap := netip.AddrPortFrom(netip.MustParseAddr(s.ParentIP), uint16(s.ParentPort)).String()
	source := netip.AddrPortFrom(netip.MustParseAddr(from), 0)
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(source)}
	if strings.HasPrefix(s.Proto, "udp") {
		d.LocalAddr = net.UDPAddrFromAddrPort(source)
	}
	c, err := d.DialContext(t.Context(), s.Proto, ap)
	assert.NilError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	assert.NilError(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// refuses checks that a client is reset, while it connects or later.
func refuses(t *testing.T, from string, s port.Spec) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	c, err := d.DialContext(t.Context(), s.Proto, net.JoinHostPort(s.ParentIP, strconv.Itoa(s.ParentPort)))
	if err == nil {
		defer c.Close()
		assert.NilError(t, c.SetDeadline(time.Now().Add(patience)))
		_, err = io.Copy(io.Discard, c)
	}
	assert.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestSourceRanges(t *testing.T) {
	for name, tc := range map[string]struct {
		proto, host, allowed, member, outsider string
	}{
		"IPv4":                   {"tcp4", hostSide, "127.0.0.3/32", memberIP, outsiderIP},
		"all addresses of IPv4":  {"tcp4", "0.0.0.0", "127.0.0.3/32", memberIP, outsiderIP},
		"loopback is not exempt": {"tcp4", hostSide, "127.0.0.3/32", memberIP, "127.0.0.1"},
		"IPv6":                   {"tcp6", "::1", "::1/128", "::1", ""},
		"IPv6, not allowed":      {"tcp6", "::1", "2001:db8::/32", "", "::1"},
		"IPv6, IPv4 ranges only": {"tcp6", "::1", "0.0.0.0/0", "", "::1"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.proto == "tcp6" {
				testutil.Require(t, testutil.IPv6)
			}
			d, _ := run(t)
			s := spec(freePort(t), serve(t, echo))
			s.Proto, s.ParentIP = tc.proto, tc.host
			restrict(t, d, ranges(s, tc.allowed))
			add(t, d, s)
			if s.ParentIP == "0.0.0.0" {
				s.ParentIP = hostSide
			}
			if tc.member != "" {
				answers(t, dialFrom(t, tc.member, s))
			}
			if tc.outsider != "" {
				refuses(t, tc.outsider, s)
			}
		})
	}
}

// Changed ranges apply at once to new and to connected clients.
func TestSourceRangesChange(t *testing.T) {
	d, _ := run(t)
	s, other := spec(freePort(t), serve(t, echo)), spec(freePort(t), serve(t, echo))
	add(t, d, s)
	add(t, d, other)
	kept, cut, elsewhere := dialFrom(t, memberIP, s), dialFrom(t, outsiderIP, s), dialFrom(t, outsiderIP, other)
	for _, c := range []net.Conn{kept, cut, elsewhere} {
		answers(t, c)
	}
	restrict(t, d, ranges(s, "127.0.0.3/32"))
	ends(t, cut)
	refuses(t, outsiderIP, s)
	answers(t, kept)
	answers(t, elsewhere)
	restrict(t, d, ranges(s)) // no client
	ends(t, kept)
	refuses(t, memberIP, s)
	restrict(t, d)
	answers(t, dialFrom(t, outsiderIP, s))
}

// A restricted port never accepts other clients, even right after it opens.
func TestSourceRangesBeforeThePortOpens(t *testing.T) {
	d, _ := run(t)
	let := make(chan struct{}, 1)
	s := spec(freePort(t), serve(t, func(*net.TCPConn) {
		select {
		case let <- struct{}{}:
		default:
		}
	}))
	restrict(t, d, ranges(s, "127.0.0.3/32"))
	quit := make(chan struct{})
	var clients sync.WaitGroup
	clients.Go(func() {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(outsiderIP)}}
		for {
			select {
			case <-quit:
				return
			default:
			}
			if c, err := from.DialContext(t.Context(), "tcp4", net.JoinHostPort(hostSide, strconv.Itoa(s.ParentPort))); err == nil {
				_ = c.SetDeadline(time.Now().Add(patience))
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}
		}
	})
	for range 50 {
		st := add(t, d, s)
		refuses(t, outsiderIP, s)
		assert.NilError(t, d.RemovePort(t.Context(), st.ID))
	}
	close(quit)
	clients.Wait()
	assert.Equal(t, len(let), 0)
}

func TestSourcesSocket(t *testing.T) {
	d, stop := run(t)
	socket := d.(*driver).sourcesSocket
	info, err := os.Stat(socket)
	assert.NilError(t, err)
	assert.Equal(t, info.Mode().Perm(), os.FileMode(0o600))
	s := spec(freePort(t), serve(t, echo))
	restrict(t, d, ranges(s, "127.0.0.3/32"))
	add(t, d, s)
	for _, nonsense := range []string{"", "null", "{}", `[{"proto":"tcp4","ip":"x"}]`, `[{"protocol":"tcp4"}]`, `[{"proto":"tcp4","port":1}]`} {
		c, err := net.Dial("unix", socket)
		assert.NilError(t, err)
		_, err = io.WriteString(c, nonsense)
		assert.NilError(t, err)
		assert.NilError(t, c.(*net.UnixConn).CloseWrite())
		reply, err := io.ReadAll(c)
		assert.NilError(t, err)
		assert.Assert(t, strings.Contains(string(reply), "error"), "%q: %s", nonsense, reply)
		assert.NilError(t, c.Close())
	}
	refuses(t, outsiderIP, s) // the previous ranges are still in force
	twice := ranges(s)
	assert.ErrorContains(t, SetSources(t.Context(), socket, []SourceRange{twice, twice}), "duplicate entry or missing address")
	stop()
	assert.ErrorContains(t, SetSources(t.Context(), socket, nil), "set source ranges of forwarded ports")
}

// IPv4-mapped addresses and addresses with a zone are compared without the mapping and the zone.
func TestGuard(t *testing.T) {
	t.Parallel()
	g := &guard{allowed: ranges(spec(1, 1), "192.0.2.0/24", "fe80::/64").Allowed}
	for text, want := range map[string]bool{
		"192.0.2.1": true, "::ffff:192.0.2.1": true, "192.0.3.1": false, "::ffff:192.0.3.1": false, "fe80::1%eth0": true, "fe80:1::1": false,
	} {
		_, got := g.enter(netip.MustParseAddr(text), nil)
		assert.Equal(t, got, want, text)
	}
	_, got := (*guard)(nil).enter(netip.MustParseAddr("192.0.2.1"), nil)
	assert.Assert(t, got)
}

// serveUDP answers each datagram to a port of the node's side with "re " and its content. It returns the port.
func serveUDP(t *testing.T) int {
	t.Helper()
	c, err := net.ListenPacket("udp4", nodeSide+":0")
	assert.NilError(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		buf := make([]byte, maxDatagram)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(append([]byte("re "), buf[:n]...), from) // the client detects missing data
		}
	})
	t.Cleanup(func() { assert.Check(t, c.Close()); served.Wait() })
	return c.LocalAddr().(*net.UDPAddr).Port
}

func udpSpec(t *testing.T, node int) port.Spec {
	s := spec(freePort(t), node)
	s.Proto = "udp4"
	return s
}

func asks(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	assert.NilError(t, err)
	buf := make([]byte, maxDatagram)
	n, err := c.Read(buf)
	assert.NilError(t, err)
	assert.Equal(t, string(buf[:n]), "re "+text)
}

// silent sends a datagram and another one on a connection that is served, and checks that the first one is not answered.
func silent(t *testing.T, c, known net.Conn) {
	t.Helper()
	_, err := io.WriteString(c, "x")
	assert.NilError(t, err)
	asks(t, known, "known")
	assert.NilError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = c.Read(make([]byte, 1))
	assert.Assert(t, errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
	assert.NilError(t, c.SetReadDeadline(time.Now().Add(patience)))
}

func TestUDPSourceRanges(t *testing.T) {
	d, _ := run(t)
	s := udpSpec(t, serveUDP(t))
	restrict(t, d, ranges(s, "127.0.0.3/32"))
	add(t, d, s)
	in, out := dialFrom(t, memberIP, s), dialFrom(t, outsiderIP, s)
	asks(t, in, "hello")
	silent(t, out, in)
	restrict(t, d)
	asks(t, out, "hello")
	restrict(t, d, ranges(s, "127.0.0.3/32")) // it has a session
	silent(t, out, in)
	restrict(t, d, ranges(udpSpecAs(s, "tcp4"), "127.0.0.9/32")) // the range for TCP does not apply
	asks(t, out, "hello")
}

func udpSpecAs(s port.Spec, proto string) port.Spec { s.Proto = proto; return s }

// Each client has its own session, large datagrams pass, and closing the port ends all sessions.
func TestUDP(t *testing.T) {
	d, stop := run(t)
	before := descriptors(t)
	s := udpSpec(t, serveUDP(t))
	st := add(t, d, s)
	var all []net.Conn
	for i := range 20 {
		c := dialFrom(t, fmt.Sprintf("127.0.1.%d", i+1), s)
		asks(t, c, "hello "+strconv.Itoa(i))
		all = append(all, c)
	}
	asks(t, all[0], strings.Repeat("x", 60000))
	asks(t, all[0], "")
	assert.NilError(t, d.RemovePort(t.Context(), st.ID))
	for _, c := range all {
		assert.NilError(t, c.Close())
	}
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		if n := descriptors(t); n > before+1 { // the server's descriptor
			return poll.Continue("%d descriptors, %d before", n, before)
		}
		return poll.Success()
	}, poll.WithDelay(10*time.Millisecond), poll.WithTimeout(patience))
	add(t, d, s)
	asks(t, dialFrom(t, memberIP, s), "again")
	stop()
}

// The sessions of a port are limited. An idle session ends, and one that waits for the child ends with its port.
func TestUDPSessions(t *testing.T) {
	d, _ := run(t)
	s := udpSpec(t, serveUDP(t))
	network, address := listenAt(s)
	f, err := listenUDP(network, address, &udpForward{spec: s, socket: d.(*driver).socket, log: io.Discard, share: relay.NewBudget(100).Share(), limit: 3, idle: 100 * time.Millisecond})
	assert.NilError(t, err)
	sessions := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.sessions)
	}
	for i := range 10 {
		asks(t, dialFrom(t, fmt.Sprintf("127.0.1.%d", i+1), s), "hello")
		assert.Assert(t, sessions() <= 3)
	}
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		if n := sessions(); n > 0 {
			return poll.Continue("%d sessions", n)
		}
		return poll.Success()
	}, poll.WithDelay(10*time.Millisecond), poll.WithTimeout(patience))
	assert.NilError(t, f.close(t.Context()))

	// A child that accepts requests and does not answer does not keep connections open.
	dir, err := os.MkdirTemp("", "pd")
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, os.RemoveAll(dir)) })
	child, err := net.Listen("unix", filepath.Join(dir, "s"))
	assert.NilError(t, err)
	defer child.Close()
	f, err = listenUDP(network, address, &udpForward{spec: s, socket: child.Addr().String(), log: io.Discard, share: relay.NewBudget(100).Share(), limit: 3, idle: time.Hour})
	assert.NilError(t, err)
	c := dialFrom(t, memberIP, s)
	for range 100 {
		_, err = io.WriteString(c, "hello")
		assert.NilError(t, err)
	}
	asked, err := child.Accept()
	assert.NilError(t, err)
	defer asked.Close()
	assert.NilError(t, f.close(t.Context()))
}

// Source ranges also apply to the clients of an inherited socket, including those in its queue before the port opened.
func TestSourceRangesOfInheritedSocket(t *testing.T) {
	l, err := net.Listen("tcp4", hostSide+":0")
	assert.NilError(t, err)
	defer l.Close()
	d, _ := run(t, l.(*net.TCPListener))
	s := spec(l.Addr().(*net.TCPAddr).Port, serve(t, echo))
	early := dialFrom(t, outsiderIP, s)
	restrict(t, d, ranges(s, "127.0.0.3/32"))
	add(t, d, s)
	answers(t, dialFrom(t, memberIP, s))
	_, err = io.Copy(io.Discard, early)
	assert.ErrorIs(t, err, syscall.ECONNRESET)
}
