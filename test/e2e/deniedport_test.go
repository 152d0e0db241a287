package e2e

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// fallbackOffset is ports.privilegedPortFallback of TestPorts.
const fallbackOffset = 30050

// deniedPort checks a load balancer with a port that ordinary users cannot bind.
func (n *testNode) deniedPort() {
	n.t.Helper()
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	assert.NilError(n.t, err)
	start, err := strconv.Atoi(strings.TrimSpace(string(text)))
	assert.NilError(n.t, err)
	const port = 80
	if start <= port {
		n.t.Skipf("the host permits port %d", port)
	}
	n.apply(service("denied", "LoadBalancer", fmt.Sprintf("{port: %d, targetPort: 8080}", port)))
	defer n.kubectl("delete", "service", "denied")
	eventually(n.t, portsLimit, "the port in place of the denied one", func() error { return answersTCP(port + fallbackOffset) })
	p, err := n.port(port)
	assert.NilError(n.t, err)
	assert.Assert(n.t, p.State == status.PortRefused && p.Reason == portfwd.ReasonDenied && strings.Contains(p.Hint, "ip_unprivileged_port_start"), "%+v", p)
	assert.Equal(n.t, n.status().State, status.NodeReady)
	eventually(n.t, portsLimit, "an event on the Service", func() error {
		if out := n.kubectl("describe", "service", "denied"); !strings.Contains(out, portfwd.ReasonDenied) {
			return errors.New(out)
		}
		return nil
	})
}
