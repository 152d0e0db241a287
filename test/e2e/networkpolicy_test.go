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

// nftQueue: the kernel has nftables' queue expression, for a user namespace too.
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

// policyNodePort is the node port of the server that policies are about.
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
metadata: {name: friend, labels: {app: friend}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "rootlessnode.test/busybox:1", command: [sleep, "36000"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: stranger, labels: {app: stranger}}
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
  - from: [{podSelector: {matchLabels: {app: friend}}}]
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

// TestNetworkPolicy: kube-network-policies does what docs/network-policy.md says, on one node.
func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	testutil.Require(t, nftQueue)
	outside := hostIP(hostAddress(t)) // by which somebody else may come, as far as one machine can play that
	addresses := "127.0.0.1"
	if outside != "" {
		addresses += "," + string(outside)
	}
	n := newNode(t, "e2e-policy", "--set", "networkPolicy=kube-network-policies", "--set", "ports.bindAddresses="+addresses)
	n.up()
	n.importImage()
	n.apply(policyPods)
	for _, pod := range []string{"server", "friend", "stranger"} {
		n.waitPod(pod)
	}
	podIP := n.kubectl("get", "pod", "server", "-o", "jsonpath={.status.podIP}")
	sub := func(name string, f func(n *testNode)) { t.Run(name, func(t *testing.T) { f(n.in(t)) }) }

	sub("without a policy all may ask", func(n *testNode) {
		eventually(n.t, podLimit, "all reach the server", func() error {
			return errors.Join(n.asks("friend", podIP), n.asks("stranger", podIP), answersAt(loopback), outsideAnswers(outside))
		})
	})
	sub("a policy that denies is for pods and others, and not for the node", func(n *testNode) {
		n.apply(policyDeny)
		eventually(n.t, podLimit, "nobody reaches the server", func() error {
			return errors.Join(n.isRefused("friend", podIP), n.isRefused("stranger", podIP), outsideIsRefused(outside))
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
	sub("a policy that allows opens for whom it names", func(n *testNode) {
		n.apply(policyAllow)
		eventually(n.t, podLimit, "the friend reaches the server", func() error { return n.asks("friend", podIP) })
		assert.NilError(n.t, n.asks("friend", "server.default.svc.cluster.local:80"), "by its Service")
		assert.NilError(n.t, errors.Join(n.isRefused("stranger", podIP), outsideIsRefused(outside)))
		if outside != "" {
			n.apply(fmt.Sprintf(policyAllowBlock, outside))
			eventually(n.t, podLimit, "the address allowed reaches the node port", func() error { return answersAt(outside) })
			assert.NilError(n.t, n.isRefused("stranger", podIP))
		}
	})
	sub("policies hold after what enforces them was killed", func(n *testNode) {
		before := n.enforcer()
		kill(n.t, n.pidOutside(before.Name))
		// Asking takes its time while nobody answers for the packets; asking for the status would keep a slow machine busy.
		eventually(n.t, podLimit, "the friend reaches the server again", func() error { return n.asks("friend", podIP) })
		assert.NilError(n.t, n.isRefused("stranger", podIP))
		eventually(n.t, podLimit, "the status tells of the restart", func() error {
			if c := n.enforcer(); c.Restarts == before.Restarts || c.State != "ready" {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	})
	n.t.Logf("top: %s", n.run(podLimit, "top", "-n", "2s"))
	sub("without the policies all may ask again", func(n *testNode) {
		n.kubectl("delete", "networkpolicy", "--all")
		eventually(n.t, podLimit, "all reach the server", func() error {
			return errors.Join(n.asks("stranger", podIP), answersAt(loopback), outsideAnswers(outside))
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

// asks: a pod gets the server's answer at an address (port 8080 unless it has one).
func (n *testNode) asks(pod, address string) error {
	if !strings.Contains(address, ":") {
		address += ":8080"
	}
	out, stderr, code := n.try(podLimit, "kubectl", "exec", pod, "--", "netprobe", "get", "http://"+address+"/")
	if code != 0 || !strings.Contains(out, "hello from server") {
		return fmt.Errorf("%s asks %s: exit %d: %s%s", pod, address, code, out, stderr)
	}
	return nil
}

// isRefused: it gets none, because of a policy, which drops packets in silence.
func (n *testNode) isRefused(pod, address string) error {
	err := n.asks(pod, address)
	if err == nil {
		return fmt.Errorf("%s reaches %s", pod, address)
	}
	if !strings.Contains(err.Error(), "netprobe: ") {
		return err
	}
	return nil
}

func answersAt(h hostIP) error {
	return get("http://"+h.port(policyNodePort)+"/", "hello from server")
}

// outsideAnswers and outsideIsRefused are about a client with an address of its own, on a host that has one.
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
