package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func somePorts() []status.Port {
	return []status.Port{
		{HostIP: "127.0.0.1", HostPort: 80, Proto: "tcp4", NodePort: 30080, Owner: "default/web/http", Kind: "Service", State: status.PortFailed,
			Since: at(3), Reason: "PortDenied", Error: "bind: permission denied", Hint: "sysctl -w net.ipv4.ip_unprivileged_port_start=80"},
		{HostIP: "127.0.0.1", HostPort: 6443, Proto: "tcp4", NodePort: 6443, Owner: "static/api", Kind: "static", State: status.PortForwarded, Since: t0},
		{HostIP: "127.0.0.1", HostPort: 30081, Proto: "tcp4", NodePort: 30081, Owner: "default/api/http", Kind: "Service", State: status.PortWaiting, Since: at(8)},
		{HostIP: "::1", HostPort: 30053, Proto: "udp6", NodePort: 30053, Owner: "default/dns/dns", Kind: "Service", State: status.PortForwarded, Since: at(9)},
	}
}

func withPorts(ports []status.Port) status.Status {
	s := upStatuses()[3]
	s.Ports = ports
	return s
}

func TestPorts(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.statuses = []status.Status{withPorts(somePorts())}
	assert.Equal(t, c.run("ports"), 0)
	golden.Assert(t, c.out.String(), "ports.txt")

	c = newCLI(t)
	c.node.statuses = []status.Status{withPorts(nil)}
	assert.Equal(t, c.run("ports", "-o", "json"), 0)
	assert.Equal(t, c.out.String(), "[]\n")

	c = newCLI(t)
	assert.Equal(t, c.run("ports"), errdefs.ExitOther)
	assert.Check(t, is.Contains(c.err.String(), "hint: rootlessnode up"))
}

func TestPortsWatch(t *testing.T) {
	t.Parallel()
	ports := somePorts()
	later := somePorts()[1:]
	later[1].State, later[1].Since = status.PortForwarded, at(10)
	run := func(args ...string) string {
		c := newCLI(t)
		c.node.statuses = []status.Status{withPorts(ports), withPorts(ports), withPorts(later)}
		assert.Equal(t, c.run(append([]string{"ports", "-w"}, args...)...), 0)
		return c.out.String()
	}
	golden.Assert(t, run(), "ports-watch.txt")
	lines := strings.Split(strings.TrimSpace(run("-o", "json")), "\n")
	assert.Equal(t, len(lines), 4+2)
	var gone status.Port
	assert.NilError(t, json.Unmarshal([]byte(lines[4]), &gone))
	assert.Equal(t, gone.State, "removed")
}

func TestPortsAddAndRemove(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.ports = []status.Port{{HostIP: "127.0.0.1", HostPort: 20431, Proto: "tcp4", NodePort: 8080, State: status.PortForwarded}}
	assert.Equal(t, c.run("ports", "add", "0:8080"), 0)
	assert.Equal(t, c.out.String(), "127.0.0.1:20431/tcp4 forwarded to port 8080 of the node\n")
	assert.Equal(t, c.run("ports", "remove", "0:8080"), 0)
	assert.DeepEqual(t, c.node.calls, []string{"add 0:8080", "remove 0:8080"})

	c = newCLI(t)
	c.node.ports = []status.Port{{HostIP: "127.0.0.1", HostPort: 80, Proto: "tcp4", NodePort: 8080, State: status.PortFailed, Error: "permission denied", Hint: "sysctl"}}
	assert.Equal(t, c.run("ports", "add", "80:8080"), errdefs.ExitOther)
	assert.Check(t, is.Contains(c.err.String(), "error: 127.0.0.1:80/tcp4 is not forwarded and will be retried: permission denied"))
	assert.Check(t, is.Contains(c.err.String(), "rootlessnode ports remove 80:8080"))

	c = newCLI(t)
	c.node.fails["add x"] = errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, errors.New("malformed")), "8080:80")
	c.node.fails["remove 1"] = errdefs.Class(errdefs.ErrNotRunning, errors.New("connection refused"))
	assert.Equal(t, c.run("ports", "add", "x"), errdefs.ExitConfig)
	assert.Equal(t, c.run("ports", "remove", "1"), errdefs.ExitOther)
	assert.Check(t, is.Contains(c.err.String(), "hint: rootlessnode up"))
	assert.Equal(t, c.run("ports", "ad"), errdefs.ExitConfig)
	assert.Check(t, is.Contains(c.err.String(), "did you mean add?"))
}

func TestStatusOfManyPorts(t *testing.T) {
	t.Parallel()
	ports := somePorts()
	for len(ports) <= maxListedPorts {
		ports = append(ports, ports[1])
	}
	c := newCLI(t)
	c.node.statuses = []status.Status{withPorts(ports)}
	assert.Equal(t, c.run("status"), 0)
	assert.Check(t, is.Contains(c.out.String(), "20 more ports are forwarded or waiting; to list them: rootlessnode ports"))
	assert.Check(t, is.Contains(c.out.String(), "19 forwarded, 1 waiting for an endpoint, 1 failed"))
	assert.Check(t, is.Contains(c.out.String(), "127.0.0.1:80/tcp4"))
}
