package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// nftQueue requires that nftables' queue expression works in a user namespace.
var nftQueue = testutil.Requirement{Name: "nft-queue", Check: func() error {
	nft := hostinfo.FindProgram("nft", append(filepath.SplitList(os.Getenv("PATH")), hostinfo.SbinDirs()...)...)
	if nft == "" {
		return errors.New("no program nft")
	}
	cmd := exec.Command(nft, "add table inet tried; add chain inet tried c; add rule inet tried c queue num 100")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}}

// policyNodePort is the node port of the server that the policies select.
const policyNodePort = 31480

const policyPods = `
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: rootlessnode.test/busybox:1
    command: [/bin/netprobe, serve, "8080"]
    readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: allowed, labels: {app: allowed}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "rootlessnode.test/busybox:1", command: [sleep, "36000"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: denied, labels: {app: denied}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "rootlessnode.test/busybox:1", command: [sleep, "36000"]}]
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec:
  type: NodePort
  selector: {app: server}
  ports: [{port: 80, targetPort: 8080, nodePort: 31480}]
`

const (
	policyDeny = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
`
	policyAllow = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allow}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: allowed}}}]
    ports: [{port: 8080}]
`
	policyAllowBlock = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allow-block}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress: [{from: [{ipBlock: {cidr: %s/32}}]}]
`
)

// TestNetworkPolicy checks on one node that kube-network-policies behaves as docs/network-policy.md describes.
func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	testutil.Require(t, nftQueue)
	outside := hostIP(hostAddress(t)) // the closest to a client of another host on a single machine
	addresses := "127.0.0.1"
	if outside != "" {
		addresses += "," + string(outside)
	}
	n := newNode(t, "e2e-policy", "--set", "networkPolicy=kube-network-policies", "--set", "ports.bindAddresses="+addresses)
	n.up()
	n.importImage()
	n.apply(policyPods)
	for _, pod := range []string{"server", "allowed", "denied"} {
		n.waitPod(pod)
	}
	podIP := n.kubectl("get", "pod", "server", "-o", "jsonpath={.status.podIP}")
	sub := func(name string, f func(n *testNode)) { t.Run(name, func(t *testing.T) { f(n.in(t)) }) }

	sub("without a policy all clients reach the server", func(n *testNode) {
		eventually(n.t, podLimit, "all clients reach the server", func() error {
			return errors.Join(n.reaches("allowed", podIP), n.reaches("denied", podIP), answersAt(loopback), outsideAnswers(outside))
		})
	})
	sub("a deny policy applies to pods and other hosts, but not to the node", func(n *testNode) {
		n.apply(policyDeny)
		eventually(n.t, podLimit, "no client reaches the server", func() error {
			return errors.Join(n.isRefused("allowed", podIP), n.isRefused("denied", podIP), outsideIsRefused(outside))
		})
		assert.NilError(n.t, answersAt(loopback), "the host's loopback, which counts as the node")
	})
	sub("the kubelet's probes pass", func(n *testNode) {
		meanwhile(n.t, 5*time.Second, "the server is Ready", func() error {
			const ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
			if got := n.kubectl("get", "pod", "server", "-o", ready); got != "True" {
				return errors.New(got)
			}
			return nil
		})
	})
	sub("an allow policy admits only the selected clients", func(n *testNode) {
		n.apply(policyAllow)
		eventually(n.t, podLimit, "the allowed pod reaches the server", func() error { return n.reaches("allowed", podIP) })
		assert.NilError(n.t, n.reaches("allowed", "server.default.svc.cluster.local:80"), "by its Service")
		assert.NilError(n.t, errors.Join(n.isRefused("denied", podIP), outsideIsRefused(outside)))
		if outside != "" {
			n.apply(fmt.Sprintf(policyAllowBlock, outside))
			eventually(n.t, podLimit, "the allowed address reaches the node port", func() error { return answersAt(outside) })
			assert.NilError(n.t, n.isRefused("denied", podIP))
		}
	})
	sub("policies apply after their enforcer was killed", func(n *testNode) {
		before := n.enforcer()
		kill(n.t, n.pidOutside(before.Name))
		// Wait for the request first: it blocks while the packets are queued without a reader, whereas polling the status would
		// keep a slow machine busy.
		eventually(n.t, podLimit, "the allowed pod reaches the server again", func() error { return n.reaches("allowed", podIP) })
		assert.NilError(n.t, n.isRefused("denied", podIP))
		eventually(n.t, podLimit, "the status shows the restart", func() error {
			if c := n.enforcer(); c.Restarts == before.Restarts || c.State != "ready" {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	})
	n.t.Logf("top: %s", n.run(podLimit, "top", "-n", "2s"))
	sub("all clients reach the server after the policies were deleted", func(n *testNode) {
		n.kubectl("delete", "networkpolicy", "--all")
		eventually(n.t, podLimit, "all clients reach the server", func() error {
			return errors.Join(n.reaches("denied", podIP), answersAt(loopback), outsideAnswers(outside))
		})
	})
}

func (n *testNode) enforcer() status.Component {
	n.t.Helper()
	s := n.status()
	c := s.Component("kube-network-policies")
	assert.Assert(n.t, c != nil)
	return *c
}

// reaches returns an error unless the server answers a pod at an address. The default port is 8080.
func (n *testNode) reaches(pod, address string) error {
	if !strings.Contains(address, ":") {
		address += ":8080"
	}
	out, stderr, code := n.try(podLimit, "kubectl", "exec", pod, "--", "netprobe", "get", "http://"+address+"/")
	if code != 0 || !strings.Contains(out, "hello from server") {
		return fmt.Errorf("request from %s to %s: exit %d: %s%s", pod, address, code, out, stderr)
	}
	return nil
}

// isRefused returns an error unless a request from a pod to an address fails. A policy drops packets without a reply.
func (n *testNode) isRefused(pod, address string) error {
	err := n.reaches(pod, address)
	if err == nil {
		return fmt.Errorf("%s can reach %s", pod, address)
	}
	if !strings.Contains(err.Error(), "netprobe: ") {
		return err
	}
	return nil
}

func answersAt(h hostIP) error {
	return get("http://"+h.port(policyNodePort)+"/", "hello from server")
}

// outsideAnswers and outsideIsRefused check a client with an address of the host. They do nothing if the host has no such address.
func outsideAnswers(h hostIP) error {
	if h == "" {
		return nil
	}
	return answersAt(h)
}

func outsideIsRefused(h hostIP) error {
	if h != "" && answersAt(h) == nil {
		return fmt.Errorf("the node port answers at %s", h)
	}
	return nil
}
