package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// ipv6 requires that the host supports IPv6.
var ipv6 = testutil.Requirement{Name: "ipv6", Check: func() error {
	_, err := os.Stat("/proc/net/if_inet6")
	return err
}}

// TestDualStack checks pods, Services and forwarded ports with network.ipv6, on a node that had only IPv4 before.
func TestDualStack(t *testing.T) {
	t.Parallel()
	testutil.Require(t, ipv6)
	n := newNode(t, "e2e-dual")
	n.up()
	n.importImage()
	n.apply(serversManifest)
	n.down()
	n.args = append(n.args, "--set", "network.ipv6=true")
	n.up()
	assert.Equal(t, n.status().Network.AddressIPv6, "fd00::100")
	n.waitRollout("echo")
	sub := func(name string, f func(n *testNode)) { t.Run(name, func(t *testing.T) { f(n.in(t)) }) }

	sub("a node and its pods have both families", func(n *testNode) {
		for _, what := range [][]string{
			{"node", "-o", `jsonpath={range .items[*].status.addresses[?(@.type=="InternalIP")]}{.address} {end}`},
			{"pod", "-l", "app=echo", "-o", "jsonpath={.items[0].status.podIPs[*].ip}"},
		} {
			var families []bool
			for _, text := range strings.Fields(n.kubectl(append([]string{"get"}, what...)...)) {
				ip, err := netip.ParseAddr(text)
				assert.NilError(n.t, err)
				families = append(families, ip.Is4())
			}
			assert.DeepEqual(n.t, families, []bool{true, false})
		}
	})
	sub("a dual-stack Service answers on both, also after a port change, until it is deleted", func(n *testNode) {
		both := func(ask func(hostIP, int) error, port int) error {
			return errors.Join(ask(loopback, port), ask(loopbackV6, port))
		}
		dual := func(port int) string {
			return service("dual", "NodePort", fmt.Sprintf(
				"{name: t, port: 80, targetPort: 8080, nodePort: %d}, {name: u, protocol: UDP, port: 80, targetPort: 8080, nodePort: %[1]d}", port),
				"  ipFamilyPolicy: RequireDualStack")
		}
		n.apply(dual(31280))
		eventually(n.t, portsLimit, "port 31280", func() error {
			return errors.Join(both(hostIP.answersTCP, 31280), both(hostIP.answersUDP, 31280))
		})
		n.apply(dual(31281))
		eventually(n.t, portsLimit, "port 31281 after a change", func() error {
			return errors.Join(both(hostIP.answersTCP, 31281), both(hostIP.refuses, 31280))
		})
		n.kubectl("delete", "service", "dual")
		eventually(n.t, portsLimit, "port 31281 closed after its Service was deleted", func() error { return both(hostIP.refuses, 31281) })
	})
	sub("an IPv6 Service answers only on IPv6", func(n *testNode) {
		n.apply(service("six", "LoadBalancer", "{port: 18280, targetPort: 8080, nodePort: 31290}", "  ipFamilies: [IPv6]"))
		for _, port := range []int{31290, 18280} {
			eventually(n.t, portsLimit, fmt.Sprintf("port %d", port), func() error {
				return errors.Join(loopbackV6.answersTCP(port), loopback.refuses(port))
			})
		}
		eventually(n.t, portsLimit, "an ingress address", func() error {
			if got := n.kubectl("get", "service", "six", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"); got != "::1" {
				return fmt.Errorf("ingress %q", got)
			}
			return nil
		})
		for what, jsonpath := range map[string]string{"service/six": "{.spec.clusterIP}", "pod": `{.items[0].status.podIPs[1].ip}`} {
			args := []string{"get", what, "-o", "jsonpath=" + jsonpath}
			port := 18280
			if what == "pod" {
				args, port = append(args, "-l", "app=echo"), 8080
			}
			ip := n.kubectl(args...)
			assert.Assert(n.t, cmp.Contains(ip, ":"))
			url := "http://" + hostIP(ip).port(port) + "/"
			eventually(n.t, portsLimit, what+" is reached from a pod", func() error {
				out, stderr, code := n.try(podLimit, "kubectl", "exec", "deployment/echo", "--", "netprobe", "get", url)
				if code != 0 || !strings.Contains(out, "hello from echo-") {
					return fmt.Errorf("exit %d: %s%s", code, out, stderr)
				}
				return nil
			})
		}
	})
	sub("an IPv4 Service does not listen on IPv6", func(n *testNode) {
		n.apply(service("four", "NodePort", "{port: 80, targetPort: 8080, nodePort: 31300}", "  ipFamilies: [IPv4]"))
		eventually(n.t, portsLimit, "port 31300", func() error { return loopback.answersTCP(31300) })
		assert.NilError(n.t, loopbackV6.refuses(31300))
	})
	sub("pods reach the host's network over IPv6", func(n *testNode) {
		ip := hostAddressV6(n.t)
		if ip == "" {
			n.t.Log("this host has no IPv6 address outside of loopback and of the node's own range")
			return
		}
		n.openHost(ip)
		url := "http://" + n.serve(ip, "hello from the host") + "/"
		eventually(n.t, portsLimit, "the host is reached from a pod", func() error {
			out, stderr, code := n.try(podLimit, "kubectl", "exec", "deployment/echo", "--", "netprobe", "get", url)
			if code != 0 || !strings.Contains(out, "hello from the host") {
				return fmt.Errorf("exit %d: %s%s", code, out, stderr)
			}
			return nil
		})
	})
	sub("the same ports after a restart", func(n *testNode) {
		n.down()
		n.up()
		for _, port := range []int{31290, 18280} {
			eventually(n.t, podLimit, fmt.Sprintf("port %d", port), func() error { return loopbackV6.answersTCP(port) })
		}
		assert.NilError(n.t, errors.Join(loopbackV6.refuses(31281), loopback.refuses(31281)))
	})
}

// hostAddressV6 returns an IPv6 address of the host that a node can reach, or "" if there is none.
func hostAddressV6(t *testing.T) string {
	t.Helper()
	tap := netip.MustParsePrefix(config.TapCIDRv6) // the node cannot reach addresses of the host in this range
	return hostAddressThat(t, func(a netip.Addr) bool { return a.Is6() && !a.IsLinkLocalUnicast() && !tap.Contains(a) })
}

func (n *testNode) waitRollout(deployment string) {
	n.t.Helper()
	n.kubectl("rollout", "status", "deployment/"+deployment, "--timeout", (podLimit - 5*time.Second).String())
}
