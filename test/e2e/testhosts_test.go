package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// envAccounts lists the prepared accounts of the test hosts, separated by commas.
const envAccounts = "ROOTLESSNODE_E2E_ACCOUNTS"

// Addresses of the test hosts: the host numbered i has hostNet.i. The last is the bridge's, a default gateway without an uplink.
const (
	hostNet    = "10.99.0."
	bridgeIP   = hostNet + "254"
	nobodysIP  = hostNet + "77"
	outsideIP  = "192.0.2.1" // from a range for documentation
	netnsLimit = 10 * time.Second
)

// accounts requires a number of prepared accounts, one for each host.
func accounts(count int) testutil.Requirement {
	return testutil.Requirement{Name: "e2e-account", Check: func() error {
		if got := len(accountNames()); got < count {
			return fmt.Errorf("%s names %d accounts, want %d; run make test-e2e as root", envAccounts, got, count)
		}
		return nil
	}}
}

func accountNames() []string {
	return strings.FieldsFunc(os.Getenv(envAccounts), func(r rune) bool { return r == ',' })
}

// hold runs a shell script in new namespaces, which unshare creates with the given flags, and keeps them until the test ends.
func hold(t *testing.T, script string, flags ...string) (pid int) {
	t.Helper()
	cmd := exec.Command("unshare", append(flags, "/bin/sh", "-ec", script+" && echo ready && exec cat")...)
	stdin, err := cmd.StdinPipe() // cat ends when it is closed
	assert.NilError(t, err)
	stdout, err := cmd.StdoutPipe()
	assert.NilError(t, err)
	cmd.Stderr = os.Stderr
	assert.NilError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NilError(t, stdin.Close())
		assert.NilError(t, cmd.Wait())
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	assert.NilError(t, err)
	assert.Equal(t, line, "ready\n")
	return cmd.Process.Pid
}

// testHost is a network namespace that simulates a host, with its own account and without a link to the machine's network namespace. It
// can also be a virtual machine.
type testHost struct {
	t       *testing.T
	pid     int // of the process that holds the namespace
	ip      hostIP
	account string
	before  []string // accountProcesses when the host was made
	login   []string // for a virtual machine: prefix that runs a command line as its account
}

// newHosts creates hosts, each with its own account. They are connected by a bridge in a separate network namespace.
func newHosts(t *testing.T, count int) []*testHost {
	t.Helper()
	return newHostsOf(t, count, count)
}

// newHostsOf is newHosts for hosts that share a number of accounts.
func newHostsOf(t *testing.T, count, shared int) []*testHost {
	t.Helper()
	testutil.Require(t, built, testutil.Root, accounts(shared), testutil.Program("ip"), testutil.Program("nsenter"))
	bridge := newBridge(t, hold(t, "true", "--net"))
	hosts := make([]*testHost, count)
	for i := range hosts {
		hosts[i] = bridge.host(i+1, accountNames()[i%shared])
	}
	return hosts
}

// newBridge creates the bridge in the network namespace of a process.
func newBridge(t *testing.T, pid int) *testHost {
	t.Helper()
	bridge := &testHost{t: t, ip: bridgeIP, pid: pid}
	bridge.do("ip", "link", "set", "lo", "up")
	bridge.do("ip", "link", "add", "br0", "type", "bridge")
	bridge.do("ip", "address", "add", bridgeIP+"/24", "dev", "br0")
	bridge.do("ip", "link", "set", "br0", "up")
	return bridge
}

// host creates a host that is connected to the bridge.
func (h *testHost) host(count int, account string) *testHost {
	h.t.Helper()
	number := strconv.Itoa(count)
	host := &testHost{t: h.t, ip: hostIP(hostNet + number), account: account}
	host.pid = hold(h.t, "ip link set lo up", "--net")
	h.do("ip", "link", "add", "host"+number, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(host.pid))
	h.do("ip", "link", "set", "host"+number, "master", "br0", "up")
	host.do("ip", "address", "add", string(host.ip)+"/24", "dev", "eth0")
	host.do("ip", "link", "set", "eth0", "up")
	host.do("ip", "route", "add", "default", "via", bridgeIP)
	host.before = host.accountProcesses()
	return host
}

func (h *testHost) netns() string { return fmt.Sprintf("/proc/%d/ns/net", h.pid) }

func (h *testHost) enter() []string { return []string{"nsenter", "--net=" + h.netns(), "--"} }

// do runs a program as root of the host.
func (h *testHost) do(args ...string) {
	h.t.Helper()
	argv := append(h.enter(), args...)
	out, err := exec.CommandContext(h.t.Context(), argv[0], argv[1:]...).CombinedOutput()
	assert.NilError(h.t, err, "on %s: %v: %s", h.ip, args, out)
}

// wrap returns the prefix that runs a command line as the host's account.
func (h *testHost) wrap() []string {
	if h.login != nil {
		return slices.Clone(h.login)
	}
	return append(h.enter(), binary("rootlessnode"), "host", "enter", "--user", h.account, "--command", "--")
}

// node returns a node on the host. It is removed when the test ends.
func (h *testHost) node(name string, upArgs ...string) *testNode {
	h.t.Helper()
	return newNodeOf(h.t, name, h.wrap(), upArgs...)
}

// paste runs a script as if a user pasted it into a shell of the host's account. The shell's PATH has the rootlessnode under test. The
// script is passed only by standard input.
func (h *testHost) paste(limit time.Duration, script string) (output string, code int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	path := strings.TrimSuffix(binary(""), "/") + ":" + os.Getenv("PATH")
	argv := append(h.wrap(), "env", "PATH="+path, "/bin/sh", "-s")
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Stdin = strings.NewReader(script + "\n")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("on %s: %s: %v\n%s", h.ip, script, err, out.String())
	}
	if ctx.Err() != nil {
		h.t.Fatalf("on %s: %s: not done within %v\n%s", h.ip, script, limit, out.String())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// passwd returns the account's passwd entry.
func (h *testHost) passwd() *user.User {
	h.t.Helper()
	u, err := user.Lookup(h.account)
	assert.NilError(h.t, err)
	return u
}

func (h *testHost) uid() string { h.t.Helper(); return h.passwd().Uid }

func (h *testHost) home() string { h.t.Helper(); return h.passwd().HomeDir }

// accountProcesses lists the processes of the host's account, also those outside of the host's namespace.
func (h *testHost) accountProcesses() []string {
	h.t.Helper()
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is a constant
	uid := regexp.MustCompile(`(?m)^Uid:\s+` + h.uid() + `\s`)
	var found []string
	for _, dir := range dirs {
		if b, err := os.ReadFile(filepath.Join(dir, "status")); err == nil && uid.Match(b) {
			cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may have ended
			found = append(found, filepath.Base(dir)+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

// started lists the account's processes that did not exist before the host.
func (h *testHost) started() []string {
	h.t.Helper()
	return slices.DeleteFunc(h.accountProcesses(), func(p string) bool { return slices.Contains(h.before, p) })
}

// runtimeDir returns the parent directory of the runtime dirs of the account's nodes.
func (h *testHost) runtimeDir() string { return "/run/user/" + h.uid() }

// inNetns calls f on a thread in the host's network namespace. Sockets that f makes stay in it.
func inNetns[T any](h *testHost, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // without unlock, so that the thread ends with this goroutine
		var r result
		defer func() { done <- r }()
		ns, err := os.Open(h.netns())
		if err != nil {
			r.err = err
			return
		}
		defer ns.Close()
		if r.err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); r.err == nil {
			r.value, r.err = f()
		}
	}()
	r := <-done
	return r.value, r.err
}

func (h *testHost) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return inNetns(h, func() (net.Conn, error) { return (&net.Dialer{Timeout: netnsLimit}).DialContext(ctx, network, address) })
}

func (h *testHost) listen(address string) (net.Listener, error) {
	return inNetns(h, func() (net.Listener, error) { return net.Listen("tcp4", address) })
}

// answers checks that a port answers at an address, for a client on this host.
func (h *testHost) answers(at hostIP, port int, udp bool) error {
	if h.login != nil {
		return h.machineAnswers(at, port, udp)
	}
	if udp {
		return at.answersUDPBy(h.dial, port)
	}
	return getBy(h.dial, "http://"+at.port(port)+"/", "hello from echo-")
}

// TestJoinHosts tests the test hosts: they reach one another, and nothing else.
func TestJoinHosts(t *testing.T) {
	hosts := newHosts(t, 3)
	for _, h := range hosts {
		for _, to := range hosts {
			h.do("/bin/busybox", "ping", "-c", "1", "-W", "5", string(to.ip))
		}
		l, err := inNetns(h, func() (net.PacketConn, error) { return net.ListenPacket("udp4", h.ip.port(8472)) })
		assert.NilError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go echoUDP(l) // until it is closed
	}
	for _, h := range hosts {
		for _, to := range hosts {
			assert.NilError(t, to.ip.answersUDPBy(h.dial, 8472), "%s from %s", to.ip, h.ip)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := h.dial(ctx, "tcp4", hostIP(outsideIP).port(443))
		cancel()
		assert.ErrorContains(t, err, "")
	}
	names := accountNames()[:len(hosts)]
	slices.Sort(names)
	assert.Equal(t, len(slices.Compact(names)), len(hosts), "two hosts have one account: %v", names)
	out, code := hosts[1].paste(netnsLimit, "id -u; ip -brief address show eth0; ip route show default")
	assert.Equal(t, code, 0, out)
	for _, want := range []string{hosts[1].uid() + "\n", string(hosts[1].ip), "via " + bridgeIP} {
		assert.Assert(t, strings.Contains(out, want), "no %q in %s", want, out)
	}
}

func echoUDP(c net.PacketConn) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(buf[:n], from) // the client reports an incomplete answer
	}
}
