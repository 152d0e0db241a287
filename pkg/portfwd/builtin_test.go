package portfwd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/api/router"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/poll"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
)

// These tests run RootlessKit's API server and the builtin driver, parent and child side, in this process and in one network
// namespace. 127.0.0.2 is the host and 127.0.0.1 is the node.

const hostSide, nodeSide = "127.0.0.2", "127.0.0.1"

type fixedNetwork struct{}

func (fixedNetwork) Info(context.Context) (*api.NetworkDriverInfo, error) {
	return &api.NetworkDriverInfo{Driver: "test", ChildIP: net.ParseIP(nodeSide)}, nil
}

// rootlesskit serves the API until the test ends and returns its client.
func rootlesskit(t *testing.T) Manager {
	t.Helper()
	m, _ := filteringKit(t)
	return m
}

// driverFilter is the SourceFilter of the driver, as in a node.
type driverFilter struct{ socket string }

func (f driverFilter) SetSources(ctx context.Context, allowed map[Bind][]netip.Prefix) error {
	var list []portdriver.SourceRange
	for b, prefixes := range allowed {
		list = append(list, portdriver.SourceRange{Proto: b.Proto, IP: b.IP, Port: b.Port, Allowed: prefixes})
	}
	return portdriver.SetSources(ctx, f.socket, list)
}

// filteringKit is rootlesskit with the driver's SourceFilter.
func filteringKit(t *testing.T) (Manager, SourceFilter) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pf") // a socket's path must be short
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, os.RemoveAll(dir)) })
	parent, err := portdriver.New(portdriver.Options{Log: io.Discard, StateDir: dir})
	assert.NilError(t, err)
	quit, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	go func() { ended <- portdriver.NewChild(io.Discard).RunChildDriver(parent.OpaqueForChild(), quit, "") }()
	go func() { ended <- parent.RunParentDriver(ready, quit, nil) }()
	<-ready
	mux := http.NewServeMux()
	router.AddRoutes(mux, &router.Backend{StateDir: dir, NetworkDriver: fixedNetwork{}, PortDriver: parent})
	srv := &http.Server{Handler: mux}
	ln, err := net.Listen("unix", filepath.Join(dir, "api.sock"))
	assert.NilError(t, err)
	served := make(chan struct{})
	go func() { _ = srv.Serve(ln); close(served) }()
	m, closeIdle := Dial(ln.Addr().String())
	t.Cleanup(func() {
		all, err := m.ListPorts(context.Background())
		assert.Check(t, err)
		for _, st := range all {
			assert.Check(t, m.RemovePort(context.Background(), st.ID))
		}
		closeIdle()
		assert.Check(t, srv.Close())
		<-served
		close(quit)
		assert.Check(t, <-ended)
		assert.Check(t, <-ended)
	})
	return m, driverFilter{portdriver.SourcesSocket(dir)}
}

// echo answers each line with "echo LINE", on TCP and UDP, at one port of the node side. It returns the port.
func echo(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp4", nodeSide+":0")
	assert.NilError(t, err)
	at := ln.Addr().(*net.TCPAddr)
	pc, err := net.ListenPacket("udp4", at.String())
	assert.NilError(t, err)
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for sc := bufio.NewScanner(c); sc.Scan(); {
					_, _ = fmt.Fprintln(c, "echo "+sc.Text()) // the client detects a missing answer
				}
			}()
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 1<<16)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(append([]byte("echo "), buf[:n]...), from)
		}
	}()
	t.Cleanup(func() { assert.Check(t, errors.Join(ln.Close(), pc.Close())); <-done; <-done })
	return at.Port
}

// exchange sends a line to the host side and returns the answer.
func exchange(t *testing.T, proto string, p int) string {
	t.Helper()
	c, err := net.Dial(proto, net.JoinHostPort(hostSide, itoa(p)))
	assert.NilError(t, err)
	defer c.Close()
	assert.NilError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = fmt.Fprintln(c, proto)
	assert.NilError(t, err)
	line, err := bufio.NewReader(c).ReadString('\n')
	assert.NilError(t, err)
	return strings.TrimSpace(line)
}

func until(t *testing.T, f *running, want ...string) {
	t.Helper()
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		got := f.states()
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return poll.Success()
		}
		return poll.Continue("%v", got)
	}, poll.WithDelay(5*time.Millisecond), poll.WithTimeout(30*time.Second))
}

func realOptions(m Manager, src Source) Options {
	return Options{Manager: m, Source: src, Config: Config{NodePorts: true, BindAddresses: []netip.Addr{netip.MustParseAddr(hostSide)}}}
}

func bothProtocols(name string, p int) Service {
	s := nodePort(name, p)
	s.Ports = append(s.Ports, ServicePort{Name: "u", Protocol: "UDP", Port: 53, NodePort: p})
	return s
}

func state(p int, proto, what string) string {
	return fmt.Sprintf("%s:%d/%s4 ns/%s", hostSide, p, proto, what)
}

func TestBuiltinBothProtocolsOfOneNumber(t *testing.T) {
	m, p := rootlesskit(t), echo(t)
	src := newFakeSource(bothProtocols("dns", p))
	f := start(t, realOptions(m, src))
	until(t, f, state(p, "tcp", "dns/web open"), state(p, "udp", "dns/u open"))
	assert.Equal(t, exchange(t, "tcp", p), "echo tcp")
	assert.Equal(t, exchange(t, "udp", p), "echo udp")
	src.remove("dns")
	until(t, f)
	_, err := net.Dial("tcp", net.JoinHostPort(hostSide, itoa(p)))
	assert.ErrorContains(t, err, "connection refused")
	assert.NilError(t, f.stop())
}

// A forward on all IPv4 addresses does not affect IPv6, and both families can be forwarded at the same time.
func TestBuiltinWildcardKeepsToItsFamily(t *testing.T) {
	testutil.Require(t, testutil.IPv6)
	m, p := rootlesskit(t), echo(t)
	l, err := net.Listen("tcp4", "0.0.0.0:0") // a port that is free on all addresses
	assert.NilError(t, err)
	host := l.Addr().(*net.TCPAddr).Port
	assert.NilError(t, l.Close())
	one := Static{Name: "four", Protocol: "tcp", HostIP: netip.IPv4Unspecified(), HostPort: host, ChildPort: p}
	f := start(t, Options{Manager: m, Config: Config{Static: []Static{one}}})
	until(t, f, fmt.Sprintf("0.0.0.0:%d/tcp4 static/four open", host))
	assert.Equal(t, exchange(t, "tcp", host), "echo tcp")
	_, err = net.Dial("tcp6", net.JoinHostPort("::1", itoa(host)))
	assert.ErrorContains(t, err, "connection refused")
	six := one
	six.Name, six.HostIP, six.ChildIP = "six", netip.IPv6Unspecified(), netip.MustParseAddr(nodeSide)
	f.SetConfig(Config{Static: []Static{one, six}})
	until(t, f, fmt.Sprintf("0.0.0.0:%d/tcp4 static/four open", host), fmt.Sprintf("[::]:%d/tcp6 static/six open", host))
	assert.NilError(t, f.stop())
}

func TestBuiltinPortInUseAndFreed(t *testing.T) {
	m, p, other := rootlesskit(t), echo(t), echo(t)
	blocker, err := net.Listen("tcp4", net.JoinHostPort(hostSide, itoa(p)))
	assert.NilError(t, err)
	o := realOptions(m, newFakeSource(nodePort("a", p), nodePort("b", other)))
	o.OnEvent = func(e Event) { t.Logf("%+v", e) }
	f := start(t, o)
	want := []string{state(p, "tcp", "a/web failed PortInUse"), state(other, "tcp", "b/web open")}
	opened := []string{state(p, "tcp", "a/web open"), want[1]}
	if other < p {
		want[0], want[1] = want[1], want[0]
		opened[0], opened[1] = opened[1], opened[0]
	}
	until(t, f, want...)
	assert.Equal(t, exchange(t, "tcp", other), "echo tcp")
	assert.NilError(t, blocker.Close())
	began := time.Now()
	until(t, f, opened...)
	assert.Check(t, time.Since(began) < 2*time.Second)
	assert.Equal(t, exchange(t, "tcp", p), "echo tcp")
	assert.NilError(t, f.stop())
}

func TestBuiltinRemoveAndAddWithAnOpenConnection(t *testing.T) {
	m, p := rootlesskit(t), echo(t)
	src := newFakeSource(nodePort("a", p))
	f := start(t, realOptions(m, src))
	for range 100 {
		until(t, f, state(p, "tcp", "a/web open"))
		c, err := net.Dial("tcp4", net.JoinHostPort(hostSide, itoa(p)))
		assert.NilError(t, err)
		src.remove("a")
		until(t, f)
		src.set(nodePort("a", p))
		c.Close()
	}
	until(t, f, state(p, "tcp", "a/web open"))
	assert.Equal(t, exchange(t, "tcp", p), "echo tcp")
	assert.NilError(t, f.stop())
}

func TestBuiltinRestartAndForeign(t *testing.T) {
	m, p, other := rootlesskit(t), echo(t), echo(t)
	hand := port.Spec{Proto: "tcp", ParentIP: hostSide, ParentPort: other, ChildIP: nodeSide, ChildPort: other}
	_, err := m.AddPort(t.Context(), hand)
	assert.NilError(t, err)
	src := newFakeSource(nodePort("a", p))
	o := realOptions(m, src)
	o.KeepOnStop, o.Ledger = true, filepath.Join(t.TempDir(), "ports")
	f := start(t, o)
	until(t, f, state(p, "tcp", "a/web open"))
	assert.NilError(t, f.stop())
	assert.Equal(t, exchange(t, "tcp", p), "echo tcp", "kept")
	before, err := m.ListPorts(t.Context())
	assert.NilError(t, err)

	f = start(t, o)
	until(t, f, state(p, "tcp", "a/web open"))
	after, err := m.ListPorts(t.Context())
	assert.NilError(t, err)
	assert.Equal(t, len(before), 2)
	assert.Equal(t, ids(before), ids(after), "kept, not created again")
	src.remove("a")
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		all, err := m.ListPorts(t.Context())
		if err == nil && len(all) == 1 {
			return poll.Success()
		}
		return poll.Continue("%v %v", all, err)
	}, poll.WithDelay(5*time.Millisecond))
	assert.NilError(t, f.stop())
	assert.Equal(t, exchange(t, "tcp", other), "echo tcp", "the foreign forward is unchanged")
}

func ids(all []port.Status) (sum int) {
	for _, st := range all {
		sum |= 1 << st.ID
	}
	return sum
}

func TestBuiltinRefusals(t *testing.T) {
	m := rootlesskit(t)
	for _, tc := range []struct {
		spec   port.Spec
		reason string
	}{
		{port.Spec{Proto: "sctp", ParentIP: hostSide, ParentPort: 30000, ChildPort: 1}, ReasonProtocol},
		{port.Spec{Proto: "dccp", ParentIP: hostSide, ParentPort: 30000, ChildPort: 1}, ReasonProtocol},
		{port.Spec{Proto: "tcp4", ParentIP: "203.0.113.1", ParentPort: 30000, ChildPort: 1}, ReasonAddress},
		{port.Spec{Proto: "tcp4", ParentIP: hostSide, ParentPort: 0, ChildPort: 1}, ReasonInvalid},
		{port.Spec{Proto: "tcp4", ParentIP: "x", ParentPort: 30000, ChildPort: 1}, ReasonInvalid},
	} {
		_, err := m.AddPort(t.Context(), tc.spec)
		assert.Check(t, is.Equal(reasonOf(err), tc.reason), "%v: %v", tc.spec, err)
	}
	assert.Check(t, isUnknownID(m.RemovePort(t.Context(), 999)))

	p := echo(t)
	s := port.Spec{Proto: "tcp4", ParentIP: hostSide, ParentPort: p, ChildIP: nodeSide, ChildPort: p}
	_, err := m.AddPort(t.Context(), s)
	assert.NilError(t, err)
	_, err = m.AddPort(t.Context(), s)
	assert.Check(t, is.Equal(reasonOf(err), ReasonClash), "%v", err)

	nowhere, closeIdle := Dial(filepath.Join(t.TempDir(), "none"))
	defer closeIdle()
	_, err = nowhere.Info(t.Context())
	assert.Check(t, is.Equal(reasonOf(err), ReasonUnreachable), "%v", err)
}

func TestBuiltinPrivilegedPort(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("requirement: an unprivileged user, who cannot bind ports below 1024")
	}
	m := rootlesskit(t)
	f := start(t, Options{Manager: m, Config: Config{Static: []Static{{
		Name: "low", Protocol: "tcp", HostPort: 81, ChildPort: 8081, HostIP: netip.MustParseAddr(hostSide)}}}})
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		if st := f.Status(); len(st) == 1 && st[0].Reason == ReasonDenied {
			return poll.Success()
		} else if len(st) == 1 && st[0].State == StateOpen {
			t.Skip("requirement: net.ipv4.ip_unprivileged_port_start above 81")
		}
		return poll.Continue("%v", f.states())
	}, poll.WithDelay(5*time.Millisecond))
	assert.Check(t, is.Contains(f.Status()[0].Hint, "sysctl -w net.ipv4.ip_unprivileged_port_start=81"))
	assert.NilError(t, f.stop())
}

// Opens hundreds of NodePorts; test/bench/ports measures thousands.
func TestBuiltinManyPorts(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	const n = 500 // many times more than a busy node has
	m := rootlesskit(t)
	var services []Service
	for i := range n {
		services = append(services, nodePort("s"+itoa(i), 20000+i))
	}
	f := start(t, realOptions(m, newFakeSource(services...)))
	began := time.Now()
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		open := 0
		for _, s := range f.Status() {
			if s.State == StateOpen {
				open++
			}
		}
		if open == n {
			return poll.Success()
		}
		return poll.Continue("%d open", open)
	}, poll.WithDelay(20*time.Millisecond), poll.WithTimeout(2*time.Minute))
	t.Logf("%d ports open after %s", n, time.Since(began).Round(time.Millisecond))
	began = time.Now()
	assert.NilError(t, f.stop())
	t.Logf("closed after %s", time.Since(began).Round(time.Millisecond))
}
