package portdriver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"go.uber.org/goleak"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/poll"

	"github.com/rootlessnode/rootlessnode/internal/relay"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// The driver runs with RootlessKit's child side in this process and one network namespace: 127.0.0.2 is the host and
// 127.0.0.1 the node. pkg/parent tests it between namespaces, with the tests of all port drivers.

const hostSide, nodeSide = "127.0.0.2", "127.0.0.1"

// patience bounds every wait in these tests; normally it takes milliseconds.
const patience = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs the driver until the test ends or stop is called.
func run(t *testing.T, held ...*net.TCPListener) (d port.ParentDriver, stop func()) {
	t.Helper()
	return runWith(t, Options{Log: io.Discard, StateDir: shortDir(t), Inherited: held})
}

// shortDir returns a directory for sockets, whose paths must be short.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pd")
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, os.RemoveAll(dir)) })
	return dir
}

// runWith is run with other options.
func runWith(t *testing.T, o Options) (d port.ParentDriver, stop func()) {
	t.Helper()
	d, err := New(o)
	assert.NilError(t, err)
	quit, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	go func() { ended <- NewChild(io.Discard).RunChildDriver(d.OpaqueForChild(), quit, "") }()
	go func() { ended <- d.RunParentDriver(ready, quit, nil) }()
	<-ready
	stop = sync.OnceFunc(func() {
		close(quit)
		assert.Check(t, <-ended)
		assert.Check(t, <-ended)
	})
	t.Cleanup(stop)
	return d, stop
}

// serve calls f for each connection to a port of the node's side. It returns the port.
func serve(t *testing.T, f func(c *net.TCPConn)) int {
	t.Helper()
	return serveAt(t, 0, f)
}

func serveAt(t *testing.T, p int, f func(c *net.TCPConn)) int {
	t.Helper()
	ln, err := net.Listen("tcp4", net.JoinHostPort(nodeSide, strconv.Itoa(p)))
	assert.NilError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() { defer c.Close(); f(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() { assert.Check(t, ln.Close()); all.Wait() })
	return ln.Addr().(*net.TCPAddr).Port
}

func echo(c *net.TCPConn) { _, _ = io.Copy(c, c) } // the client detects missing data

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", hostSide+":0")
	assert.NilError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func spec(host, node int) port.Spec {
	return port.Spec{Proto: "tcp4", ParentIP: hostSide, ParentPort: host, ChildIP: nodeSide, ChildPort: node}
}

func add(t *testing.T, d port.ParentDriver, s port.Spec) *port.Status {
	t.Helper()
	st, err := d.AddPort(t.Context(), s)
	assert.NilError(t, err)
	return st
}

func dial(t *testing.T, p int) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp4", net.JoinHostPort(hostSide, strconv.Itoa(p)))
	assert.NilError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	assert.NilError(t, c.SetDeadline(time.Now().Add(patience)))
	return c.(*net.TCPConn)
}

// answers sends a line and checks that it is echoed.
func answers(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := fmt.Fprintln(c, "hello")
	assert.NilError(t, err)
	line, err := bufio.NewReader(c).ReadString('\n')
	assert.NilError(t, err)
	assert.Equal(t, line, "hello\n")
}

// ends checks that a connection is closed or reset.
func ends(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, c)
	assert.Check(t, !errors.Is(err, os.ErrDeadlineExceeded), "still open after %v", patience)
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	assert.NilError(t, err)
	return len(list)
}

// All clients that connect while a port is opened and closed are served or rejected, and all their resources are released.
func TestRemovalUnderConnections(t *testing.T) {
	d, stop := run(t)
	s := spec(freePort(t), serve(t, echo))
	before := descriptors(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				c, err := net.Dial("tcp4", net.JoinHostPort(hostSide, strconv.Itoa(s.ParentPort)))
				if err != nil {
					continue // currently closed
				}
				assert.Check(t, c.SetDeadline(time.Now().Add(patience)))
				ends(t, c)
				_ = c.Close() // no longer needed
			}
		})
	}
	for range 100 {
		st := add(t, d, s)
		assert.NilError(t, dial(t, s.ParentPort).Close()) // a connection that may not be accepted yet
		assert.NilError(t, d.RemovePort(t.Context(), st.ID))
	}
	cancel()
	clients.Wait()
	poll.WaitOn(t, func(poll.LogT) poll.Result { // the child's side closes its descriptor a moment later
		runtime.GC() // package net keeps the pipes of splice(2) for reuse until they are garbage-collected
		if n := descriptors(t); n > before {
			return poll.Continue("%d descriptors, %d before", n, before)
		}
		return poll.Success()
	}, poll.WithDelay(10*time.Millisecond), poll.WithTimeout(patience))
	stop()
}

func TestRemovalEndsConnections(t *testing.T) {
	for what, end := range map[string]func(d port.ParentDriver, id int, stop func()) error{
		"removed": func(d port.ParentDriver, id int, _ func()) error { return d.RemovePort(context.Background(), id) },
		"ended":   func(_ port.ParentDriver, _ int, stop func()) error { stop(); return nil },
	} {
		t.Run(what, func(t *testing.T) {
			d, stop := run(t)
			gone := make(chan struct{})
			s := spec(freePort(t), serve(t, func(c *net.TCPConn) { echo(c); close(gone) }))
			st := add(t, d, s)
			c := dial(t, s.ParentPort)
			answers(t, c)
			assert.NilError(t, end(d, st.ID, stop))
			ends(t, c)
			<-gone
			_, err := net.Dial("tcp4", c.RemoteAddr().String())
			assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		})
	}
}

// The end of one direction is passed on, and the other direction continues.
func TestHalfClose(t *testing.T) {
	d, _ := run(t)
	t.Run("by the client", func(t *testing.T) {
		s := spec(freePort(t), serve(t, func(c *net.TCPConn) {
			n, _ := io.Copy(io.Discard, c)
			_, _ = fmt.Fprintln(c, n) // the client detects missing data
		}))
		add(t, d, s)
		c := dial(t, s.ParentPort)
		_, err := c.Write(make([]byte, 1<<20))
		assert.NilError(t, err)
		assert.NilError(t, c.CloseWrite())
		got, err := io.ReadAll(c)
		assert.NilError(t, err)
		assert.Equal(t, string(got), "1048576\n")
	})
	t.Run("by the server", func(t *testing.T) {
		got := make(chan string, 1)
		s := spec(freePort(t), serve(t, func(c *net.TCPConn) {
			_ = c.CloseWrite()
			raw, _ := io.ReadAll(c)
			got <- string(raw)
		}))
		add(t, d, s)
		c := dial(t, s.ParentPort)
		_, err := io.ReadAll(c)
		assert.NilError(t, err)
		_, err = io.WriteString(c, "continues")
		assert.NilError(t, err)
		assert.NilError(t, c.CloseWrite())
		assert.Equal(t, <-got, "continues")
	})
}

// If no program listens in the node, clients are reset, as without a forward, and the log has the reason.
func TestNoListener(t *testing.T) {
	var log bytes.Buffer
	d, stop := runWith(t, Options{Log: &log, StateDir: shortDir(t)})
	s := spec(freePort(t), freePort(t))
	add(t, d, s)
	_, err := dial(t, s.ParentPort).Read(make([]byte, 1))
	assert.ErrorIs(t, err, syscall.ECONNRESET)
	stop()
	assert.Equal(t, log.String(), fmt.Sprintf("port %d/tcp4: connect to the node: dial tcp %s:%d: connect: connection refused\n",
		s.ParentPort, nodeSide, s.ChildPort))
}

func TestPortsAreNumberedTogether(t *testing.T) {
	d, _ := run(t)
	s := spec(freePort(t), serve(t, echo))
	udp := s
	udp.Proto = "udp4"
	first, second := add(t, d, s), add(t, d, udp)
	assert.Assert(t, first.ID != second.ID)
	list := func() []port.Status {
		all, err := d.ListPorts(t.Context())
		assert.NilError(t, err)
		return all
	}
	assert.Equal(t, len(list()), 2)
	_, err := d.AddPort(t.Context(), s)
	assert.ErrorContains(t, err, fmt.Sprintf("conflict with ID %d", first.ID))
	_, err = d.AddPort(t.Context(), port.Spec{Proto: "sctp", ParentPort: 1, ChildPort: 1})
	assert.ErrorContains(t, err, "unsupported port protocol")
	assert.NilError(t, d.RemovePort(t.Context(), first.ID))
	assert.ErrorContains(t, d.RemovePort(t.Context(), first.ID), "unknown id")
	assert.DeepEqual(t, list(), []port.Status{*second})
	third := add(t, d, s)
	assert.Assert(t, third.ID != first.ID && third.ID != second.ID)
	answers(t, dial(t, s.ParentPort))
	assert.NilError(t, d.RemovePort(t.Context(), second.ID))
	pc, err := net.ListenPacket("udp4", net.JoinHostPort(hostSide, strconv.Itoa(s.ParentPort)))
	assert.NilError(t, err)
	assert.NilError(t, pc.Close())
}

func TestAddressInUse(t *testing.T) {
	d, _ := run(t)
	l, err := net.Listen("tcp4", hostSide+":0")
	assert.NilError(t, err)
	defer l.Close()
	_, err = d.AddPort(t.Context(), spec(l.Addr().(*net.TCPAddr).Port, 1))
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	all, err := d.ListPorts(t.Context())
	assert.NilError(t, err)
	assert.Equal(t, len(all), 0)
}

// A listener on all IPv4 addresses does not listen on IPv6, not even with the protocol tcp.
func TestWildcardKeepsToItsFamily(t *testing.T) {
	testutil.Require(t, testutil.IPv6)
	d, _ := run(t)
	s := spec(freePort(t), serve(t, echo))
	s.Proto, s.ParentIP = "tcp", "0.0.0.0"
	add(t, d, s)
	answers(t, dial(t, s.ParentPort))
	_, err := net.Dial("tcp6", net.JoinHostPort("::1", strconv.Itoa(s.ParentPort)))
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// An inherited socket is used for its port: its clients wait for the port, and for a program that listens in the node.
func TestInheritedSocket(t *testing.T) {
	l, err := net.Listen("tcp4", hostSide+":0")
	assert.NilError(t, err)
	defer l.Close()
	d, _ := run(t, l.(*net.TCPListener))
	s := spec(l.Addr().(*net.TCPAddr).Port, freePort(t))
	early := dial(t, s.ParentPort)
	st := add(t, d, s)
	another := spec(freePort(t), s.ChildPort)
	add(t, d, another)
	_, err = dial(t, another.ParentPort).Read(make([]byte, 1))
	assert.ErrorIs(t, err, syscall.ECONNRESET) // a port that the driver bound has given up
	serveAt(t, s.ChildPort, echo)
	answers(t, early)
	assert.NilError(t, d.RemovePort(t.Context(), st.ID))
	ends(t, early)
	between := dial(t, s.ParentPort)
	add(t, d, s)
	answers(t, between)
}

// A child that accepts requests and does not answer does not keep connections open.
func TestRemovalWithUnresponsiveChild(t *testing.T) {
	dir, err := os.MkdirTemp("", "pd")
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, os.RemoveAll(dir)) })
	child, err := net.Listen("unix", filepath.Join(dir, "s"))
	assert.NilError(t, err)
	defer child.Close()
	watch, err := relay.NewWatch()
	assert.NilError(t, err)
	defer watch.Close()
	mute := &driver{socket: child.Addr().String(), log: io.Discard, limits: newLimits(1000), monitor: newMonitor(nil), watch: watch}
	s := spec(freePort(t), 1)
	f, err := mute.listen(s)
	assert.NilError(t, err)
	c := dial(t, s.ParentPort)
	asked, err := child.Accept()
	assert.NilError(t, err)
	defer asked.Close()
	assert.NilError(t, f.close(t.Context()))
	ends(t, c)
}

// failingListener is a listener that has no descriptors at first.
type failingListener struct {
	net.Listener
	once sync.Once
}

func (s *failingListener) Accept() (c net.Conn, err error) {
	s.once.Do(func() { err = syscall.EMFILE })
	if err != nil {
		return nil, err
	}
	return s.Listener.Accept()
}

// A port that could not accept for a while accepts again.
func TestAcceptsAgain(t *testing.T) {
	d, _ := run(t)
	ln, err := net.Listen("tcp4", hostSide+":0")
	assert.NilError(t, err)
	p := ln.Addr().(*net.TCPAddr).Port
	parent := d.(*driver)
	f := &forward{
		ln: &failingListener{Listener: ln}, spec: spec(p, serve(t, echo)), socket: parent.socket, log: io.Discard,
		share: parent.limits.others.Share(), watch: parent.watch, monitor: parent.monitor,
	}
	f.ctx, f.cancel = context.WithCancel(t.Context())
	f.group.Go(f.accept)
	answers(t, dial(t, p))
	assert.NilError(t, f.close(t.Context()))
}

// RootlessKit's child side without sources behaves as with sources after a failed connection with the client's address.
func TestAddressNotKept(t *testing.T) {
	d, _ := run(t)
	port := serve(t, echo)
	for _, tc := range []struct {
		client  string
		strict  bool
		refused bool
	}{
		{"192.0.2.1", true, true}, {"192.0.2.1", false, false}, {"127.0.0.1", true, false}, {"::1", true, false},
	} {
		f := &forward{spec: spec(1, port), strict: tc.strict, socket: d.(*driver).socket, log: io.Discard, ctx: t.Context()}
		c, err := f.connect(t.Context(), &net.TCPAddr{IP: net.ParseIP(tc.client), Port: 1})
		if tc.refused {
			assert.ErrorIs(t, err, errAddressNotKept)
			continue
		}
		assert.NilError(t, err)
		assert.NilError(t, c.Close())
	}
	assert.Assert(t, keepsAddress(&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1")}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}))
}
