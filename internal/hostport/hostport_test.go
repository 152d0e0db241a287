package hostport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// roleAddress makes the test binary run EnsureAddress in new namespaces.
const roleAddress = "HOSTPORT_TEST_ADDRESS"

func TestMain(m *testing.M) {
	if ip := os.Getenv(roleAddress); ip != "" {
		os.Exit(tryAddress(ip))
	}
	goleak.VerifyTestMain(m)
}

func quiet() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// hostService sends a greeting, echoes until the client ends its direction, and sends a goodbye.
func hostService(t *testing.T, network, address string) int {
	t.Helper()
	l, err := net.Listen(network, address)
	assert.NilError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all, err := io.ReadAll(c)
			if err == nil {
				_, _ = c.Write(append([]byte("heard "), all...))
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { assert.Check(t, l.Close()); <-done })
	return l.Addr().(*net.TCPAddr).Port
}

// serve runs Serve until the test ends and returns its socket.
func serve(t *testing.T, ports ...int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hp") // a socket's path must be short
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "host.sock")
	l, err := Listen(socket)
	assert.NilError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, ports, quiet()) }()
	t.Cleanup(func() { cancel(); assert.Check(t, <-done) })
	return socket
}

// runRelay runs Relay on 127.0.0.3, which is the node's address here.
func runRelay(t *testing.T, socket string, ports ...int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Relay(ctx, RelayOptions{Address: node, Ports: ports, Socket: socket, Log: quiet()}, func() { close(ready) })
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			assert.Check(t, <-done)
		}
	}
	t.Cleanup(stop)
	return stop
}

var node = netip.MustParseAddr("127.0.0.3")

func dialNode(t *testing.T, port int) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp4", netip.AddrPortFrom(node, uint16(port)).String())
	assert.NilError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// isReset connects to the node's side of a port and checks that the connection is reset, at once or a little later.
func isReset(t *testing.T, port int) {
	t.Helper()
	c, err := net.Dial("tcp4", netip.AddrPortFrom(node, uint16(port)).String())
	if err == nil {
		_, err = io.ReadAll(c)
		_ = c.Close()
	}
	assert.Assert(t, errors.Is(err, syscall.ECONNRESET), "%v", err)
}

func TestRelayReachesChosenPorts(t *testing.T) {
	port := hostService(t, "tcp4", "127.0.0.1:0")
	runRelay(t, serve(t, port), port)
	big := bytes.Repeat([]byte("x"), 1<<20)
	for _, text := range [][]byte{[]byte("you"), nil, big} {
		c := dialNode(t, port)
		_, err := c.Write(text)
		assert.NilError(t, err)
		assert.NilError(t, c.CloseWrite()) // the end of one direction passes through
		got, err := io.ReadAll(c)
		assert.NilError(t, err)
		assert.Equal(t, string(got), "heard "+string(text))
	}
}

func TestRelayReachesIPv6Loopback(t *testing.T) {
	testutil.Require(t, testutil.IPv6)
	port := hostService(t, "tcp6", "[::1]:0")
	runRelay(t, serve(t, port), port)
	c := dialNode(t, port)
	assert.NilError(t, c.CloseWrite())
	got, err := io.ReadAll(c)
	assert.NilError(t, err)
	assert.Equal(t, string(got), "heard ")
}

// The parent's list decides, regardless of the node's request.
func TestOtherPortsStayClosed(t *testing.T) {
	port, secret := hostService(t, "tcp4", "127.0.0.1:0"), hostService(t, "tcp4", "127.0.0.1:0")
	socket := serve(t, port)
	_, err := Dial(t.Context(), socket, secret)
	assert.ErrorContains(t, err, "is not in network.hostPorts")
	runRelay(t, socket, secret)
	isReset(t, secret)
}

func TestNoListenerOnTheHost(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	assert.NilError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	assert.NilError(t, l.Close())
	socket := serve(t, port)
	_, err = Dial(t.Context(), socket, port)
	assert.ErrorContains(t, err, "connection refused")
	runRelay(t, socket, port)
	isReset(t, port)
}

func TestStopClosesOpenConnections(t *testing.T) {
	port := hostService(t, "tcp4", "127.0.0.1:0")
	stop := runRelay(t, serve(t, port), port)
	c := dialNode(t, port)
	_, err := c.Write([]byte("x"))
	assert.NilError(t, err)
	stop()
	_, err = io.ReadAll(c)
	assert.Assert(t, err == nil || errors.Is(err, syscall.ECONNRESET), "%v", err)
}

func TestPortTakenInside(t *testing.T) {
	taken := hostService(t, "tcp4", node.String()+":0")
	err := Relay(t.Context(), RelayOptions{Address: node, Ports: []int{taken}, Socket: "/none", Log: quiet()}, func() { t.Error("ready") })
	assert.ErrorContains(t, err, "listen for connections to port")
	assert.Assert(t, errors.Is(err, unix.EADDRINUSE))
}

func TestServeSurvivesMalformedRequests(t *testing.T) {
	port := hostService(t, "tcp4", "127.0.0.1:0")
	socket := serve(t, port)
	for _, text := range []string{"", "x", strings.Repeat("y", 100)} {
		c, err := net.Dial("unix", socket)
		assert.NilError(t, err)
		_, err = c.Write([]byte(text))
		assert.NilError(t, err)
		assert.NilError(t, c.Close())
	}
	c, err := Dial(t.Context(), socket, port)
	assert.NilError(t, err)
	assert.NilError(t, c.Close())
}

// Only this address is added, and only in the node.
func TestEnsureAddress(t *testing.T) {
	testutil.Require(t, testutil.UserNS)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleAddress+"=169.254.100.1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	assert.NilError(t, err, "%s", out)
	assert.Equal(t, string(out), "169.254.100.1/32\n")
}

// tryAddress runs in a new network namespace, whose loopback is down and has no address.
func tryAddress(text string) int {
	ip := netip.MustParseAddr(text)
	for range 2 { // the second time it exists
		if err := EnsureAddress(ip); err != nil {
			println(err.Error())
			return 1
		}
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return 1
	}
	addrs, err := lo.Addrs()
	if err != nil {
		return 1
	}
	for _, a := range addrs {
		_, _ = os.Stdout.WriteString(a.String() + "\n")
	}
	return 0
}

// TestListenOnLoopback checks that ports are also open at the loopback address, except one that is in use.
func TestListenOnLoopback(t *testing.T) {
	t.Parallel()
	taken := hostService(t, "tcp4", "127.0.0.1:0")
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	assert.NilError(t, err)
	port := free.Addr().(*net.TCPAddr).Port
	assert.NilError(t, free.Close())
	listeners, err := listen(t.Context(), RelayOptions{Address: node, Ports: []int{taken, port}, Loopback: []int{taken, port}, Log: quiet()})
	assert.NilError(t, err)
	var at []string
	for _, l := range listeners {
		at = append(at, l.Addr().String())
		assert.NilError(t, l.Close())
	}
	assert.DeepEqual(t, at, []string{
		fmt.Sprintf("%s:%d", node, taken), fmt.Sprintf("%s:%d", node, port), fmt.Sprintf("127.0.0.1:%d", port),
	})
}
