package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

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

// portsLimit is for what happens within milliseconds on an idle machine.
const portsLimit = 30 * time.Second

// service is the manifest of a Service in front of the servers.
func service(name, typ, ports string, more ...string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec:\n  type: %s\n  selector: {app: echo}\n  ports: [%s]\n%s\n",
		name, typ, ports, strings.Join(more, "\n"))
}

// refuses: nobody listens.
func refuses(port int) error {
	c, err := net.DialTimeout("tcp4", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
	if err == nil {
		return errors.Join(fmt.Errorf("port %d accepts", port), c.Close())
	}
	return nil
}

func answersTCP(port int) error {
	return get(fmt.Sprintf("http://127.0.0.1:%d/", port), "hello from echo-")
}

func answersUDP(port int) error {
	c, err := net.Dial("udp4", fmt.Sprintf("127.0.0.1:%d", port))
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

func (n *testNode) ports() []status.Port {
	n.t.Helper()
	var ports []status.Port
	assert.NilError(n.t, json.Unmarshal([]byte(n.run(podLimit, "ports", "-o", "json")), &ports))
	return ports
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

// TestPorts: what Services and pods promise answers on the host, and stops when the promise ends.
func TestPorts(t *testing.T) {
	t.Parallel()
	n := newNode(t, "e2e-ports")
	n.up()
	n.importImage()
	n.apply(serversManifest)
	n.kubectl("rollout", "status", "deployment/echo", "--timeout", (podLimit - 5*time.Second).String())
	sub := func(name string, f func(n *testNode)) { t.Run(name, func(t *testing.T) { f(n.in(t)) }) }

	sub("a node port answers and moves and goes", func(n *testNode) {
		n.apply(service("web", "NodePort", "{port: 80, targetPort: 8080, nodePort: 31080}"))
		eventually(n.t, portsLimit, "port 31080", func() error { return answersTCP(31080) })
		n.apply(service("web", "NodePort", "{port: 80, targetPort: 8080, nodePort: 31081}"))
		eventually(n.t, portsLimit, "port 31081 after a change", func() error { return errors.Join(answersTCP(31081), refuses(31080)) })
		n.kubectl("delete", "service", "web")
		eventually(n.t, portsLimit, "port 31081 after the end of its Service", func() error { return refuses(31081) })
	})
	sub("TCP and UDP on one number", func(n *testNode) {
		n.apply(service("dns", "NodePort",
			"{name: t, port: 53, targetPort: 8080, nodePort: 31053}, {name: u, protocol: UDP, port: 53, targetPort: 8080, nodePort: 31053}"))
		eventually(n.t, portsLimit, "both protocols of 31053", func() error { return errors.Join(answersTCP(31053), answersUDP(31053)) })
	})
	sub("a port that is taken opens by itself", func(n *testNode) {
		l, err := net.Listen("tcp4", "127.0.0.1:31090")
		assert.NilError(n.t, err)
		n.apply(service("taken", "NodePort",
			"{name: a, port: 90, targetPort: 8080, nodePort: 31090}, {name: b, port: 91, targetPort: 8080, nodePort: 31091}"))
		eventually(n.t, portsLimit, "the other port of the Service", func() error { return answersTCP(31091) })
		eventually(n.t, portsLimit, "the taken port is told, with its Service", func() error {
			p, err := n.port(31090)
			if err == nil && (p.State != status.PortFailed || p.Namespace != "default" || p.Name != "taken" || p.Error == "") {
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
		eventually(n.t, portsLimit, "port 18081 after its pod", func() error { return refuses(18081) })
	})
	sub("a Service without endpoints refuses", func(n *testNode) {
		n.apply(strings.Replace(service("idle", "NodePort", "{port: 80, nodePort: 31100}"), "app: echo", "app: nobody", 1))
		eventually(n.t, portsLimit, "a forward that waits", func() error {
			p, err := n.port(31100)
			if err == nil && p.State == status.PortForwarded {
				err = fmt.Errorf("%+v", p)
			}
			return err
		})
		assert.NilError(n.t, refuses(31100))
	})
	sub("forwards by hand are kept", func(n *testNode) {
		n.run(podLimit, "ports", "add", "18090:31053")
		eventually(n.t, portsLimit, "port 18090", func() error { return answersTCP(18090) })
		_, stderr, code := n.try(podLimit, "ports", "add", "18090:nonsense")
		assert.Equal(n.t, code, 2, stderr)
	})
	sub("the API server goes and comes back", func(n *testNode) {
		api := func() status.Component {
			s := n.status()
			c := s.Component("kube-apiserver")
			assert.Assert(n.t, c != nil)
			return *c
		}
		before := api()
		kill(n.t, n.pidOutside("kube-apiserver"))
		eventually(n.t, podLimit, "the API server is back", func() error {
			c := api()
			if c.Restarts == before.Restarts || c.State != "ready" {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
		for _, port := range []int{31053, 31090, 31091, 18080, 18090} {
			eventually(n.t, portsLimit, fmt.Sprintf("port %d", port), func() error { return answersTCP(port) })
		}
		// What changes now still arrives.
		n.kubectl("delete", "service", "taken")
		eventually(n.t, portsLimit, "ports of the deleted Service", func() error { return errors.Join(refuses(31090), refuses(31091)) })
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
		n.run(podLimit, "ports", "remove", "18090")
		eventually(n.t, portsLimit, "port 18090 is closed", func() error { return refuses(18090) })
		assert.Assert(n.t, cmp.Contains(n.run(podLimit, "ports"), "default/dns"))
	})
}
