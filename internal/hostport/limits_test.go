package hostport

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/poll"
)

const patience = time.Minute

// mute returns a port of the host whose program accepts no connections.
func mute(t *testing.T, backlog int) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, unix.Close(fd)) })
	assert.NilError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	assert.NilError(t, unix.Listen(fd, backlog))
	own, err := unix.Getsockname(fd)
	assert.NilError(t, err)
	return own.(*unix.SockaddrInet4).Port
}

func sockets(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	assert.NilError(t, err)
	for _, e := range list {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(to, "socket:") { // the directory's own descriptor is closed
			n++
		}
	}
	return n
}

// from connects to the node's side of a port from an address, like a pod.
func from(t *testing.T, source string, port int) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: patience}
	c, err := d.DialContext(t.Context(), "tcp4", netip.AddrPortFrom(node, uint16(port)).String())
	assert.NilError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	assert.NilError(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// heard checks that the port of hostService answers c.
func heard(t *testing.T, c net.Conn) {
	t.Helper()
	assert.NilError(t, c.(*net.TCPConn).CloseWrite())
	got, err := io.ReadAll(c)
	assert.NilError(t, err)
	assert.Equal(t, string(got), "heard ")
	assert.NilError(t, c.Close())
}

// One pod cannot use all connections of the others, and one port not those of another.
func TestLimits(t *testing.T) {
	hung, port := mute(t, 200), hostService(t, "tcp4", "127.0.0.1:0")
	socket := serve(t, hung, port)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	o := RelayOptions{Address: node, Ports: []int{hung, port}, Socket: socket, Log: quiet(), Descriptors: 60}
	go func() { done <- Relay(ctx, o, func() { close(ready) }) }()
	<-ready
	t.Cleanup(func() { cancel(); assert.Check(t, <-done) })
	before := sockets(t)

	var idle []net.Conn
	for range 10 { // a third of 60 descriptors is 20
		idle = append(idle, from(t, "127.0.0.11", hung))
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.11")}}
	c, err := d.DialContext(t.Context(), "tcp4", netip.AddrPortFrom(node, uint16(hung)).String())
	if err == nil {
		assert.NilError(t, c.SetDeadline(time.Now().Add(patience)))
		_, err = c.Read(make([]byte, 1))
		assert.Check(t, c.Close())
	}
	assert.ErrorIs(t, err, syscall.ECONNRESET)
	heard(t, from(t, "127.0.0.12", port))
	for i := range 30 {
		idle = append(idle, from(t, netip.AddrFrom4([4]byte{127, 0, 0, byte(20 + i)}).String(), hung)) // many pods: the port's limit
	}
	heard(t, from(t, "127.0.0.13", port))
	for _, c := range idle {
		assert.NilError(t, c.Close())
	}
	poll.WaitOn(t, func(poll.LogT) poll.Result { // all resources are released
		if n := sockets(t); n > before {
			return poll.Continue("%d sockets, %d before", n, before)
		}
		return poll.Success()
	}, poll.WithDelay(50*time.Millisecond), poll.WithTimeout(patience))
	heard(t, from(t, "127.0.0.11", port))
}

// A port of the host that accepts no connections does not block requests for others.
func TestHungPortOfTheHost(t *testing.T) {
	hung, port := mute(t, 0), hostService(t, "tcp4", "127.0.0.1:0")
	socket := serve(t, hung, port)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, maxRequests)
	for range maxRequests {
		go func() {
			if c, err := Dial(ctx, socket, hung); err == nil { // the kernel accepts the first
				_ = c.Close()
			}
			ended <- struct{}{}
		}()
	}
	c, err := Dial(t.Context(), socket, port)
	assert.NilError(t, err)
	assert.NilError(t, c.Close())
	cancel()
	for range maxRequests {
		<-ended
	}
}

// roleLimited makes the test binary run the test of a process that has no descriptors left.
const roleLimited = "HOSTPORT_TEST_LIMITED"

// With a lack of descriptors, connections wait and are not closed.
func TestNoDescriptorsLeft(t *testing.T) {
	if os.Getenv(roleLimited) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestNoDescriptorsLeft$", "-test.v")
		cmd.Env = append(os.Environ(), roleLimited+"=1")
		out, err := cmd.CombinedOutput()
		assert.NilError(t, err, "%s", out)
		return
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	assert.NilError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	served := make(chan error, 1)
	go func() {
		for range 2 {
			c, err := l.Accept()
			if err == nil {
				_, err = io.WriteString(c, "hello")
			}
			if err == nil {
				_, err = io.Copy(c, c)
			}
			if err != nil {
				served <- err
				return
			}
			_ = c.Close() // no longer needed
		}
		served <- l.Close()
	}()
	runRelay(t, serve(t, port), port)
	greeted := func(c net.Conn) {
		got := make([]byte, 5)
		_, err := io.ReadFull(c, got)
		assert.NilError(t, err)
		assert.Equal(t, string(got), "hello")
	}
	open := dialNode(t, port)
	assert.NilError(t, open.SetDeadline(time.Now().Add(patience)))
	greeted(open)
	assert.NilError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: 100}))
	_, err = open.Write([]byte("you"))
	assert.NilError(t, err)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	assert.NilError(t, err)
	var fill []int
	for {
		null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EMFILE) {
			break
		}
		assert.NilError(t, err)
		fill = append(fill, null)
	}
	assert.NilError(t, unix.Connect(fd, &unix.SockaddrInet4{Addr: node.As4(), Port: port})) // it waits to be accepted
	assert.NilError(t, open.CloseWrite())
	got, err := io.ReadAll(open)
	assert.NilError(t, err)
	assert.Equal(t, string(got), "you")
	for _, null := range fill {
		assert.NilError(t, unix.Close(null))
	}
	f := os.NewFile(uintptr(fd), "client")
	c, err := net.FileConn(f)
	assert.NilError(t, errors.Join(err, f.Close()))
	assert.NilError(t, c.SetDeadline(time.Now().Add(patience)))
	greeted(c)
	assert.NilError(t, c.Close())
	assert.NilError(t, <-served)
}
