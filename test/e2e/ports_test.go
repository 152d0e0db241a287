package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

const serversManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo}
spec:
  replicas: 2
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: server
        image: rootlessnode.test/busybox:1
        command: [/bin/netprobe, serve, "8080"]
        readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
`

// muteManifest is a pod whose program listens but does not accept connections, like a program that hangs.
const muteManifest = `{apiVersion: v1, kind: Pod, metadata: {name: mute, labels: {app: mute}}, spec: {terminationGracePeriodSeconds: 1, containers: [
  {name: s, image: "rootlessnode.test/busybox:1", readinessProbe: {exec: {command: [test, -f, /stopped]}, periodSeconds: 1},
   command: [sh, -c, "netprobe serve 8080 & until nc -w 1 127.0.0.1 8080 </dev/null; do sleep 0.1; done; kill -STOP $!; touch /stopped; exec sleep 1000000"]}]}}`

// leave connects to a port and closes the connection in one of four ways.
func leave(port, how int) error {
	c, err := net.DialTimeout("tcp", loopback.port(port), patiently(10*time.Second))
	if err != nil {
		return err
	}
	switch how % 4 {
	case 1:
		_, err = fmt.Fprint(c, "GET / HTTP/1.0\r\n\r\n")
	case 2:
		err = c.(*net.TCPConn).SetLinger(0)
	case 3:
		err = c.(*net.TCPConn).CloseWrite()
	}
	return errors.Join(err, c.Close())
}

// sockets returns the number of open sockets of a process.
func sockets(pid int) (n int, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	for _, e := range list {
		if to, _ := os.Readlink(filepath.Join(dir, e.Name())); strings.HasPrefix(to, "socket:") { // it may be closed by now
			n++
		}
	}
	return n, err
}

// portsLimit is the time limit for operations that take milliseconds on an idle machine.
var portsLimit = patiently(30 * time.Second)

// service returns the manifest of a Service that selects the servers.
func service(name, typ, ports string, more ...string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec:\n  type: %s\n  selector: {app: echo}\n  ports: [%s]\n%s\n",
		name, typ, ports, strings.Join(more, "\n"))
}

// hostIP is an address of the host at which ports are tested.
type hostIP string

const (
	loopback   hostIP = "127.0.0.1"
	loopbackV6 hostIP = "::1"
)

func (h hostIP) port(port int) string { return net.JoinHostPort(string(h), strconv.Itoa(port)) }

// refuses returns an error if something listens at the port.
func (h hostIP) refuses(port int) error {
	c, err := net.DialTimeout("tcp", h.port(port), time.Second)
	if err == nil {
		return errors.Join(fmt.Errorf("%s accepts", h.port(port)), c.Close())
	}
	return nil
}

func (h hostIP) answersTCP(port int) error {
	return get(fmt.Sprintf("http://%s/", h.port(port)), "hello from echo-")
}

func (h hostIP) answersUDP(port int) error {
	return h.answersUDPBy((&net.Dialer{}).DialContext, port)
}

// dialer opens a connection, possibly from another network namespace.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

func (h hostIP) answersUDPBy(dial dialer, port int) error {
	c, err := dial(context.Background(), "udp", h.port(port))
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("ping")); err != nil {
		return err
	}
	buf := make([]byte, 16)
	n, err := c.Read(buf)
	if err == nil && string(buf[:n]) != "ping" {
		err = fmt.Errorf("got %q", buf[:n])
	}
	return err
}

func refuses(port int) error    { return loopback.refuses(port) }
func answersTCP(port int) error { return loopback.answersTCP(port) }
func answersUDP(port int) error { return loopback.answersUDP(port) }

func (n *testNode) ports() []status.Port {
	n.t.Helper()
	return answer[[]status.Port](n, "ports")
}

// port returns the forward of a Service's or pod's port number.
func (n *testNode) port(number int) (status.Port, error) {
	n.t.Helper()
	for _, p := range n.ports() {
		if p.HostPort == number {
			return p, nil
		}
	}
	return status.Port{}, fmt.Errorf("no forward of port %d", number)
}

// holds returns an error unless the port is forwarded for the Service.
func (n *testNode) holds(number int, service string) error {
	for _, p := range n.ports() {
		if p.HostPort == number && p.Name == service && p.State == status.PortForwarded {
			return nil
		}
	}
	return fmt.Errorf("port %d is not forwarded for %s", number, service)
}

// refused returns an error unless the port is refused to the Service.
func (n *testNode) refused(number int, service string) error {
	for _, p := range n.ports() {
		if p.HostPort == number && p.Name == service && p.State == status.PortRefused && p.Error != "" {
			return nil
		}
	}
	return fmt.Errorf("port %d is not refused to %s", number, service)
}

// event returns an error unless the object KIND/NAME has an Event with this reason.
func (n *testNode) event(object, reason string) error {
	if out := n.kubectl("events", "--for", object); !strings.Contains(out, reason) {
		return fmt.Errorf("%s has no event %s: %s", object, reason, out)
	}
	return nil
}

// clientFrom checks that a client with this address gets answers over TCP and UDP. The error names the protocol that fails.
func (h hostIP) clientFrom(address string, port int) error {
	tcp := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: time.Second}
	client := http.Client{Transport: &http.Transport{DialContext: tcp.DialContext, DisableKeepAlives: true}, Timeout: time.Second}
	res, errTCP := client.Get(fmt.Sprintf("http://%s/", h.port(port)))
	if errTCP == nil {
		errTCP = res.Body.Close()
	} else {
		errTCP = fmt.Errorf("tcp: %w", errTCP)
	}
	udp := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(address)}}
	errUDP := h.answersUDPBy(udp.DialContext, port)
	if errUDP != nil {
		errUDP = fmt.Errorf("udp: %w", errUDP)
	}
	return errors.Join(errTCP, errUDP)
}

// addByRootlessKit forwards a port with RootlessKit's API, without rootlessnode, as rootlessctl does.
func addByRootlessKit(t *testing.T, runtimeDir string, spec port.Spec) {
	t.Helper()
	m, closeIdle := portfwd.Dial(layout.Runtime{Dir: runtimeDir}.APISocket())
	defer closeIdle()
	_, err := m.AddPort(t.Context(), spec)
	assert.NilError(t, err)
}

// cutOff drops all packets of the node role's connection to the API server, so that the connection is dead but not closed, as after a
// suspend of the machine. The returned function removes the rule. cutOff needs programs of the host inside the node.
func (n *testNode) cutOff() (restore func()) {
	n.t.Helper()
	for _, program := range []string{"nft", "ss"} {
		testutil.Require(n.t, testutil.Requirement{Name: "program:" + program, Check: func() error {
			_, stderr, code := n.try(podLimit, "exec", "--", "sh", "-c", "command -v "+program)
			if code != 0 {
				return fmt.Errorf("not found inside: %s", stderr)
			}
			return nil
		}})
	}
	server := fmt.Sprintf("127.0.0.1:%d", config.Default().Inside.APIServerPort)
	cut := 0
	for line := range strings.Lines(n.run(podLimit, "exec", "--", "ss", "-tnpH", "state", "established", "dst", server)) {
		f := strings.Fields(line)
		if len(f) < 5 || !strings.Contains(f[4], `"exe"`) { // the node role's name in /proc
			continue
		}
		_, port, err := net.SplitHostPort(f[2])
		assert.NilError(n.t, err, line)
		if cut++; cut == 1 {
			n.run(podLimit, "exec", "--", "nft", "add table inet cut; add chain inet cut in { type filter hook input priority 0; }")
		}
		n.run(podLimit, "exec", "--", "nft", fmt.Sprintf("add rule inet cut in tcp sport %[1]s drop; add rule inet cut in tcp dport %[1]s drop", port))
	}
	assert.Assert(n.t, cut > 0, "the node role has no connection to "+server)
	return func() { n.run(podLimit, "exec", "--", "nft", "delete table inet cut") }
}

// apiServer returns the status of the API server.
func (n *testNode) apiServer() status.Component {
	n.t.Helper()
	s := n.status()
	c := s.Component("kube-apiserver")
	assert.Assert(n.t, c != nil)
	return *c
}

// killAPIServer kills the API server and waits until it is restarted.
func (n *testNode) killAPIServer() {
	n.t.Helper()
	before := n.apiServer()
	kill(n.t, n.pidOutside("kube-apiserver"))
	eventually(n.t, podLimit, "the API server is back", func() error {
		c := n.apiServer()
		if c.Restarts == before.Restarts || c.State != "ready" {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// TestPorts checks that ports of Services and pods are forwarded on the host, and closed when the Service or pod is deleted.
func TestPorts(t *testing.T) {
	t.Parallel()
	n := newNode(t, "e2e-ports")
	n.args = append(n.args, "--set", fmt.Sprintf("ports.privilegedPortFallback=%d", fallbackOffset))
	n.up()
	n.importImage()
	n.apply(serversManifest)
	n.waitRollout("echo")
	sub := func(name string, f func(n *testNode)) { t.Run(name, func(t *testing.T) { f(n.in(t)) }) }

	sub("a node port answers, also after a port change, until it is deleted", func(n *testNode) {
		n.apply(service("web", "NodePort", "{port: 80, targetPort: 8080, nodePort: 31080}"))
		eventually(n.t, portsLimit, "port 31080", func() error { return answersTCP(31080) })
		n.apply(service("web", "NodePort", "{port: 80, targetPort: 8080, nodePort: 31081}"))
		eventually(n.t, portsLimit, "port 31081 after a change", func() error { return errors.Join(answersTCP(31081), refuses(31080)) })
		n.kubectl("delete", "service", "web")
		eventually(n.t, portsLimit, "port 31081 closed after its Service was deleted", func() error { return refuses(31081) })
	})
	sub("TCP and UDP on one number", func(n *testNode) {
		n.apply(service("dns", "NodePort",
			"{name: t, port: 53, targetPort: 8080, nodePort: 31053}, {name: u, protocol: UDP, port: 53, targetPort: 8080, nodePort: 31053}"))
		eventually(n.t, portsLimit, "both protocols of 31053", func() error { return errors.Join(answersTCP(31053), answersUDP(31053)) })
	})
	sub("a port that the host denies is a problem of its Service", func(n *testNode) { n.deniedPort() })
	sub("a taken port is forwarded once it is free", func(n *testNode) {
		l, err := net.Listen("tcp4", "127.0.0.1:31090")
		assert.NilError(n.t, err)
		n.apply(service("taken", "NodePort",
			"{name: a, port: 90, targetPort: 8080, nodePort: 31090}, {name: b, port: 91, targetPort: 8080, nodePort: 31091}"))
		eventually(n.t, portsLimit, "the other port of the Service", func() error { return answersTCP(31091) })
		eventually(n.t, portsLimit, "the taken port is reported with its Service", func() error {
			p, err := n.port(31090)
			if err == nil && (p.State != status.PortRefused || p.Namespace != "default" || p.Name != "taken" || p.Error == "") {
				err = fmt.Errorf("%+v", p)
			}
			return err
		})
		eventually(n.t, portsLimit, "an event on the Service", func() error {
			if out := n.kubectl("describe", "service", "taken"); !strings.Contains(out, "31090") || !strings.Contains(out, "Warning") {
				return errors.New(out)
			}
			return nil
		})
		assert.NilError(n.t, l.Close())
		eventually(n.t, portsLimit, "the port once it is free", func() error { return answersTCP(31090) })
	})
	sub("a LoadBalancer has an address of the host", func(n *testNode) {
		n.apply(service("lb", "LoadBalancer", "{port: 18080, targetPort: 8080}"))
		eventually(n.t, portsLimit, "port 18080", func() error { return answersTCP(18080) })
		eventually(n.t, portsLimit, "an ingress address", func() error {
			if got := n.kubectl("get", "service", "lb", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"); got != "127.0.0.1" {
				return fmt.Errorf("ingress %q", got)
			}
			return nil
		})
	})
	sub("a hostPort answers", func(n *testNode) {
		n.apply(`{apiVersion: v1, kind: Pod, metadata: {name: echo-host}, spec: {terminationGracePeriodSeconds: 1, containers: [
		  {name: s, image: "rootlessnode.test/busybox:1", command: [/bin/netprobe, serve, "8080"], ports: [{containerPort: 8080, hostPort: 18081}]}]}}`)
		eventually(n.t, podLimit, "port 18081", func() error { return answersTCP(18081) })
		n.kubectl("delete", "pod", "echo-host")
		eventually(n.t, portsLimit, "port 18081 closed after its pod was deleted", func() error { return refuses(18081) })
	})
	sub("a Service without endpoints refuses", func(n *testNode) {
		n.apply(strings.Replace(service("idle", "NodePort", "{port: 80, nodePort: 31100}"), "app: echo", "app: none", 1))
		eventually(n.t, portsLimit, "a forward that waits", func() error {
			p, err := n.port(31100)
			if err == nil && p.State == status.PortForwarded {
				err = fmt.Errorf("%+v", p)
			}
			return err
		})
		assert.NilError(n.t, refuses(31100))
	})
	sub("clients of a program that hangs leave nothing behind", func(n *testNode) {
		n.apply(muteManifest)
		n.apply(strings.Replace(service("mute", "NodePort", "{port: 80, targetPort: 8080, nodePort: 31101}"), "app: echo", "app: mute", 1))
		n.waitPod("mute")
		eventually(n.t, podLimit, "port 31101", func() error { return leave(31101, 2) })
		parent := n.status().ParentPID
		before, err := sockets(parent)
		assert.NilError(n.t, err)
		for i := range 400 {
			assert.NilError(n.t, leave(31101, i))
		}
		eventually(n.t, podLimit, "the sockets of the parent are as before", func() error {
			now, err := sockets(parent)
			if err == nil && now > before+10 { // some are for requests to RootlessKit's API
				err = fmt.Errorf("%d, %d before", now, before)
			}
			return err
		})
		n.kubectl("delete", "pod,service", "mute")
	})
	sub("manually added forwards are kept", func(n *testNode) {
		n.run(podLimit, "ports", "add", "18090:31053")
		eventually(n.t, portsLimit, "port 18090", func() error { return answersTCP(18090) })
		_, stderr, code := n.try(podLimit, "ports", "add", "18090:nonsense")
		assert.Equal(n.t, code, 2, stderr)
	})
	// Users who can create Services and pods cannot take ports of others or addresses of the host.
	sub("an annotation takes no port of another Service", func(n *testNode) {
		thief := func(name string, port int) string {
			return strings.Replace(service(name, "NodePort", "{port: 80, targetPort: 8080}"), "name: "+name,
				fmt.Sprintf("name: %s, annotations: {rootlessnode.dev/host-port: %q}", name, strconv.Itoa(port)), 1)
		}
		for port, name := range map[int]string{18080: "a-thief", 31053: "b-thief"} {
			n.apply(thief(name, port))
			eventually(n.t, portsLimit, "the thief is refused", func() error { return errors.Join(n.refused(port, name), n.event("service/"+name, "PortClash")) })
			assert.NilError(n.t, n.holds(port, map[int]string{18080: "lb", 31053: "dns"}[port]))
		}
	})
	sub("annotations and pods bind no other address", func(n *testNode) {
		n.apply(strings.Replace(service("wide", "NodePort", "{port: 80, targetPort: 8080, nodePort: 31130}"), "name: wide",
			`name: wide, annotations: {rootlessnode.dev/bind: "0.0.0.0"}`, 1))
		n.apply(`{apiVersion: v1, kind: Pod, metadata: {name: wide}, spec: {terminationGracePeriodSeconds: 1, containers: [
		  {name: s, image: "rootlessnode.test/busybox:1", command: [/bin/netprobe, serve, "8080"], ports: [{containerPort: 8080, hostPort: 18083, hostIP: 127.0.0.2}]}]}}`)
		n.apply(service("external", "ClusterIP", "{port: 18084, targetPort: 8080}", "  externalIPs: [192.0.2.2]"))
		eventually(n.t, podLimit, "the events", func() error {
			return errors.Join(n.event("service/wide", "NotAllowed"), n.event("pod/wide", "NotAllowed"), n.event("service/external", "ExternalIPsIgnored"))
		})
		assert.NilError(n.t, errors.Join(refuses(31130), hostIP("127.0.0.2").refuses(18083)))
		n.kubectl("delete", "service/wide", "service/external", "pod/wide")
	})
	sub("a LoadBalancer answers its source ranges only", func(n *testNode) {
		ranges := func(cidr string) string {
			return service("ranged", "LoadBalancer", "{name: t, port: 18085, targetPort: 8080, nodePort: 31140}, "+
				"{name: u, protocol: UDP, port: 18085, targetPort: 8080, nodePort: 31140}", "  loadBalancerSourceRanges: ["+cidr+"]")
		}
		n.apply(ranges("127.0.0.2/32"))
		for _, port := range []int{18085, 31140} {
			eventually(n.t, portsLimit, "an allowed client", func() error { return loopback.clientFrom("127.0.0.2", port) })
			assert.ErrorContains(n.t, loopback.clientFrom("127.0.0.1", port), "tcp")
			assert.ErrorContains(n.t, loopback.clientFrom("127.0.0.3", port), "udp")
		}
		n.apply(ranges("127.0.0.3/32"))
		eventually(n.t, portsLimit, "the other client after a change", func() error { return loopback.clientFrom("127.0.0.3", 18085) })
		assert.ErrorContains(n.t, loopback.clientFrom("127.0.0.2", 18085), "tcp")
	})
	sub("the API server is restarted", func(n *testNode) {
		n.killAPIServer()
		for _, port := range []int{31053, 31090, 31091, 18080, 18090} {
			eventually(n.t, portsLimit, fmt.Sprintf("port %d", port), func() error { return answersTCP(port) })
		}
		// Later changes still arrive.
		n.kubectl("delete", "service", "taken")
		eventually(n.t, portsLimit, "ports of the deleted Service", func() error { return errors.Join(refuses(31090), refuses(31091)) })
	})
	sub("a watch with a too old resource version", func(n *testNode) {
		at := func(name string, port int) string {
			return service(name, "NodePort", fmt.Sprintf("{port: 80, targetPort: 8080, nodePort: %d}", port))
		}
		n.apply(at("moved", 31120))
		n.apply(at("gone", 31121))
		eventually(n.t, portsLimit, "the ports before", func() error { return errors.Join(answersTCP(31120), answersTCP(31121)) })
		// The API server rejects a watch from a version before its own start: 410 Gone, too old resource version.
		refusals := func() (count int) {
			for line := range strings.Lines(n.run(podLimit, "logs", "node")) {
				if strings.Contains(line, "too old resource version") && strings.Contains(line, "/api/v1/services") {
					count++
				}
			}
			return count
		}
		known, mend := refusals(), n.cutOff()
		n.apply(at("moved", 31122))
		n.kubectl("delete", "service", "gone")
		n.apply(at("new", 31123))
		for port, open := range map[int]bool{31120: true, 31121: true, 31122: false, 31123: false} {
			assert.Equal(n.t, refuses(port) != nil, open, "%d: the node knows already", port)
		}
		n.killAPIServer()
		mend()
		eventually(n.t, podLimit, "the ports after", func() error {
			return errors.Join(refuses(31120), refuses(31121), answersTCP(31122), answersTCP(31123))
		})
		assert.Assert(n.t, refusals() > known, "the API server did not refuse the watch of Services")
		for _, port := range []int{31053, 18080, 18090} {
			assert.NilError(n.t, answersTCP(port))
		}
		n.kubectl("delete", "service", "moved", "new")
		eventually(n.t, portsLimit, "their ports are closed", func() error { return errors.Join(refuses(31122), refuses(31123)) })
	})
	sub("the API server is away for a minute", func(n *testNode) {
		pid := n.pidOutside("kube-apiserver")
		assert.NilError(n.t, syscall.Kill(pid, syscall.SIGSTOP))
		meanwhile(n.t, time.Minute, "forwards without the API server", func() error {
			return errors.Join(answersTCP(31053), answersUDP(31053), answersTCP(18080), refuses(31100))
		})
		assert.NilError(n.t, syscall.Kill(pid, syscall.SIGCONT))
		eventually(n.t, podLimit, "the API server answers", func() error {
			_, stderr, code := n.try(podLimit, "kubectl", "get", "--raw", "/readyz")
			if code != 0 {
				return errors.New(stderr)
			}
			return nil
		})
		n.apply(service("late", "NodePort", "{port: 80, targetPort: 8080, nodePort: 31110}"))
		eventually(n.t, portsLimit, "a Service created afterwards", func() error { return answersTCP(31110) })
		n.kubectl("delete", "service", "late")
		eventually(n.t, portsLimit, "the port is closed after its Service was deleted", func() error { return refuses(31110) })
	})
	sub("the same ports after a kill and no others", func(n *testNode) {
		s := n.status()
		addByRootlessKit(n.t, s.RuntimeDir, port.Spec{
			Proto: "tcp4", ParentIP: "127.0.0.1", ParentPort: 18092, ChildIP: s.Network.Address, ChildPort: 31053,
		})
		eventually(n.t, portsLimit, "port 18092", func() error { return answersTCP(18092) })
		eventually(n.t, podLimit, "the foreign forward is recorded", func() error {
			b, err := os.ReadFile(layout.NewData(s.DataDir).Ports())
			if err == nil && !strings.Contains(string(b), "*tcp4 127.0.0.1 18092") {
				err = errors.New(string(b))
			}
			return err
		})
		for what, victim := range map[string]func() int{
			"node role": func() int { return nodeRole(n.t, n.status().ChildPID) },
			"parent":    func() int { return n.status().ParentPID },
		} {
			kill(n.t, victim())
			noTrace(n.t, n.name)
			assert.NilError(n.t, errors.Join(refuses(31053), refuses(18092)), what)
			n.up()
			for _, port := range []int{31053, 18080, 18090, 18092} {
				eventually(n.t, podLimit, fmt.Sprintf("port %d after the end of the %s", port, what), func() error { return answersTCP(port) })
			}
			assert.NilError(n.t, errors.Join(refuses(31090), refuses(31110), refuses(18081)), what)
		}
	})
	sub("the same ports after a restart and no others", func(n *testNode) {
		n.down()
		for _, port := range []int{31053, 18080, 18090} {
			assert.NilError(n.t, refuses(port))
		}
		n.up()
		for _, port := range []int{31053, 18080, 18090} {
			eventually(n.t, podLimit, fmt.Sprintf("port %d", port), func() error { return answersTCP(port) })
		}
		assert.NilError(n.t, errors.Join(refuses(31090), refuses(31091), refuses(18081)))
		assert.NilError(n.t, errors.Join(n.holds(18080, "lb"), n.refused(18080, "a-thief"), n.holds(31053, "dns"), n.refused(31053, "b-thief")))
		eventually(n.t, portsLimit, "source ranges", func() error { return loopback.clientFrom("127.0.0.3", 18085) })
		assert.ErrorContains(n.t, loopback.clientFrom("127.0.0.1", 18085), "tcp")
		n.kubectl("delete", "service", "lb")
		eventually(n.t, portsLimit, "the port goes to the next one", func() error { return n.holds(18080, "a-thief") })
		n.run(podLimit, "ports", "remove", "18090")
		eventually(n.t, portsLimit, "port 18090 is closed", func() error { return refuses(18090) })
		assert.Assert(n.t, slices.ContainsFunc(n.ports(), func(p status.Port) bool { return strings.HasPrefix(p.Owner, "default/dns/") }), "%+v", n.ports())
	})
}
