package parent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/gvisortapvsock"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/pasta"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/slirp4netns"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// envInside marks the process in the new namespaces.
const envInside = "ROOTLESSNODE_TEST_INSIDE"

// insidePort is the TCP and UDP port of the process inside; on sinkPort, it discards a stream.
const insidePort, sinkPort = 7007, 7008

// shortest is the maximum length of datagrams that are answered with their text. Longer ones are answered with their length.
const shortest = 64

// order has the parameters of the process inside.
type order struct {
	Network, Ports string
	Message        messages.ParentInitNetworkDriverCompleted
	Opaque         map[string]string
}

// bench is a running pair of drivers.
type bench struct {
	pair   pair
	driver port.ParentDriver
	// ip is the address of the listener inside.
	ip string
}

// bring starts a process in new namespaces and the two drivers, as a node does.
func bring(t testing.TB, p pair) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "rn") // a socket's path must be short
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, os.RemoveAll(dir)) })
	log := logrus.New()
	cfg := config.Default()
	cfg.Network.Driver, cfg.Ports.Driver = p.network, p.ports
	r := &run{Options: Options{Config: cfg, Runtime: layout.Runtime{Dir: dir}, Log: log, LogWriter: io.Discard}, forwarding: &forwarding{}}
	assert.NilError(t, os.Mkdir(r.Runtime.StateDir(), 0o700))

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envInside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	assert.NilError(t, err)
	stdout, err := cmd.StdoutPipe()
	assert.NilError(t, err)
	assert.NilError(t, cmd.Start())
	t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })

	nd, err := r.networkDriver()
	assert.NilError(t, err)
	msg, cleanup, err := nd.ConfigureNetwork(cmd.Process.Pid, r.Runtime.StateDir(), "")
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, cleanup()) })
	pd, err := r.portDriver()
	assert.NilError(t, err)
	assert.NilError(t, json.NewEncoder(stdin).Encode(order{p.network, p.ports, *msg, pd.OpaqueForChild()}))

	ready, quit, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	provider, _ := msg.Network.(port.VirtualNetworkProvider)
	context := &port.ChildContext{IP: net.ParseIP(msg.IP).To4(), GatewayIP: net.ParseIP(msg.Gateway).To4(), Network: provider}
	go func() { ended <- pd.RunParentDriver(ready, quit, context) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("the port driver ended: %v", err)
	}
	t.Cleanup(func() { close(quit); assert.Check(t, <-ended) })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	assert.NilError(t, err)
	assert.Equal(t, line, "listening\n")
	return &bench{pair: p, driver: pd, ip: msg.IP}
}

// playInside runs the process in the namespaces. It configures the network as RootlessKit's child does, listens, and exits at the end of
// its standard input.
func playInside() error {
	stdin := bufio.NewReader(os.Stdin)
	line, err := stdin.ReadBytes('\n')
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	if err := o.configure(); err != nil {
		return err
	}
	if o.Ports == config.PortsBuiltin {
		go func() {
			if err := portdriver.NewChild(os.Stderr).RunChildDriver(o.Opaque, make(chan struct{}), ""); err != nil {
				fmt.Fprintln(os.Stderr, "port driver inside:", err)
			}
		}()
	}
	if err := listenInside(o.Message.IP); err != nil {
		return err
	}
	sink, err := net.Listen("tcp4", net.JoinHostPort(o.Message.IP, strconv.Itoa(sinkPort)))
	if err != nil {
		return err
	}
	go swallow(sink)
	fmt.Println("listening")
	_, err = io.Copy(io.Discard, stdin)
	return err
}

func (o order) configure() error {
	m := o.Message
	drivers := map[string]network.ChildDriver{
		config.DriverSlirp: slirp4netns.NewChildDriver(), config.DriverGvisor: gvisortapvsock.NewChildDriver(),
		config.DriverPasta: pasta.NewChildDriver(),
	}
	commands := "ip link set lo up\n"
	if o.Network == config.DriverNone { // as pkg/child does
		commands += "ip link add " + m.Dev + " type veth peer name end0\nip link set end0 up\n"
	}
	if err := shell(commands); err != nil {
		return err
	}
	if d, ok := drivers[o.Network]; ok {
		if _, err := d.ConfigureNetworkChild(&m, ""); err != nil {
			return err
		}
		if info, err := d.ChildDriverInfo(); err != nil || info.ConfiguresInterface {
			return err
		}
	}
	return shell(fmt.Sprintf("ip link set %[1]s up mtu %[2]d\nip addr add %[3]s/%[4]d dev %[1]s\nip route add default via %[5]s dev %[1]s\n",
		m.Dev, m.MTU, m.IP, m.Netmask, m.Gateway))
}

func shell(commands string) error {
	for line := range strings.Lines(commands) {
		f := strings.Fields(line)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.TrimSpace(line), err, out)
		}
	}
	return nil
}

// swallow reads each connection to its end and answers with the number of bytes.
func swallow(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			// Hide other methods of the connection, because io.Copy would use splice(2), which real programs cannot use.
			n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 128<<10))
			_, _ = fmt.Fprintln(c, n) // the sender detects errors
		}()
	}
}

// listenInside answers each line and each datagram with its source address and its text, or its length if a datagram is long.
func listenInside(ip string) error {
	at := net.JoinHostPort(ip, strconv.Itoa(insidePort))
	l, err := net.Listen("tcp4", at)
	if err != nil {
		return err
	}
	pc, err := net.ListenPacket("udp4", at)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for s := bufio.NewScanner(c); s.Scan(); {
					_, _ = fmt.Fprintln(c, c.RemoteAddr(), s.Text()) // the client detects errors
				}
			}()
		}
	}()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			answer := strings.TrimSpace(string(buf[:n]))
			if n > shortest {
				answer = strconv.Itoa(n)
			}
			_, _ = pc.WriteTo([]byte(from.String()+" "+answer+"\n"), from)
		}
	}()
	return nil
}
