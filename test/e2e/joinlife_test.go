package e2e

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// readiness returns the status of the condition Ready of a Node: True, False or Unknown.
func (c *joined) readiness(i int) string {
	c.t.Helper()
	return c.control().kubectl("get", "node", objectName(i), "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
}

// killed checks that a Node is not Ready after its parent was killed, and that the next up needs no token and restores the pods.
func (c *joined) killed(i int) {
	c.t.Helper()
	n := c.nodes[i]
	kill(c.t, n.status().ParentPID)
	noTraceIn(c.t, c.hosts[i].runtimeDir(), n.name)
	eventually(c.t, podLimit, objectName(i)+" is not Ready", func() error {
		if got := c.readiness(i); got == "True" {
			return errors.New("Ready is " + got)
		}
		return nil
	})
	eventually(c.t, podLimit, "the pod of "+objectName(i)+" is not Ready", func() error {
		const ready = `jsonpath={.status.conditions[?(@.type=="Ready")].status}`
		if got := c.control().kubectl("get", "pod", podName(i), "-o", ready); got == "True" {
			return errors.New("Ready is " + got)
		}
		return nil
	})
	n.up()
	c.waitNode(i)
	c.control().waitPod(podName(i))
	assert.Equal(c.t, strings.TrimSpace(c.control().kubectl("exec", podName(i), "--", "cat", "/etc/hostname")), podName(i))
	c.nodePorts()
}

// deleted checks that a node whose Node object was deleted reports that, and that it can join again with a new token.
func (c *joined) deleted(i int) {
	c.t.Helper()
	n := c.nodes[i]
	n.down()
	c.control().kubectl("delete", "node", objectName(i))
	c.control().kubectl("delete", "pod", podName(i), "--ignore-not-found", "--force", "--grace-period=0") // the cluster would do it, but later
	stdout, stderr, code := n.try(upLimit, append([]string{"up"}, n.args...)...)
	out := stdout + stderr
	assert.Equal(c.t, code, errdefs.ExitPreflight, "%s", out)
	assert.Equal(c.t, strings.Count("\n"+out, "\nerror: "), 1, "%s", out)
	for _, want := range []string{objectName(i), "deleted", "token"} {
		assert.Assert(c.t, cmp.Contains(out, want))
	}
	noTraceIn(c.t, c.hosts[i].runtimeDir(), n.name)
	v := c.invite()
	c.join(i, v)
	c.hosts[i].keptSecret(v.secret())
	eventually(c.t, podLimit, "the token of a node that has joined is deleted", func() error {
		id, _, _ := strings.Cut(v.token, ".")
		for _, token := range answer[[]kubeapi.BootstrapToken](c.control(), "token", "list") {
			if token.ID == id {
				return errors.New("token list still shows it")
			}
		}
		return nil
	})
	c.applyPod(i)
	c.control().waitPod(podName(i))
}

const moverManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: mover}
spec:
  selector: {matchLabels: {app: mover}}
  template:
    metadata: {labels: {app: mover}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: c, image: "rootlessnode.test/busybox:1", command: [/bin/sh, -c, "trap exit TERM; while true; do sleep 1; done"]}
`

// leaves checks that the pods of a node that leaves are moved to other nodes, and that nothing of the node is left.
func (c *joined) leaves(i int) {
	c.t.Helper()
	n, k, host := c.nodes[i], c.control(), c.hosts[i]
	data := n.status().DataDir
	k.kubectl("delete", "pod", podName(i)) // it has no controller that would create it again
	var others []string
	for other := range c.nodes {
		if other != i {
			others = append(others, objectName(other))
		}
	}
	k.kubectl(append([]string{"cordon"}, others...)...)
	k.apply(moverManifest)
	k.waitRollout("mover")
	k.kubectl(append([]string{"uncordon"}, others...)...)
	where := func() string {
		return k.kubectl("get", "pods", "-l", "app=mover", "-o", "jsonpath={.items[*].spec.nodeName}")
	}
	assert.Equal(c.t, where(), objectName(i))
	n.run(upLimit, "drain-and-leave", "--timeout", podLimit.String())
	k.waitRollout("mover")
	eventually(c.t, podLimit, "the pod runs elsewhere", func() error {
		if got := where(); got == "" || strings.Contains(got, objectName(i)) {
			return fmt.Errorf("it is on %q", got)
		}
		return nil
	})
	assert.Assert(c.t, !strings.Contains(k.kubectl("get", "nodes", "-o", "name"), objectName(i)))
	host.forgot(n.name, data)
}

// forgot checks that nothing is left of a node that left its cluster.
func (h *testHost) forgot(name, data string) {
	h.t.Helper()
	if h.login != nil {
		h.machineForgot(name, data)
		return
	}
	noTraceIn(h.t, h.runtimeDir(), name)
	_, err := os.Lstat(data)
	assert.Assert(h.t, errors.Is(err, os.ErrNotExist), "%s is left: %v", data, err)
	eventually(h.t, podLimit, "no process of "+h.account+" is left", func() error {
		if left := h.started(); len(left) > 0 {
			return errors.New(strings.Join(left, "; "))
		}
		return nil
	})
	files, err := filepath.Glob(filepath.Join(h.runtimeDir(), "rootlessnode", name+"*"))
	assert.NilError(h.t, err)
	assert.Equal(h.t, len(files), 0, "%v", files)
}

// rotationLimit is the time limit for the renewal of a certificate of signingDuration. The kubelet renews it after 70 to 90 % of its
// validity. The signer backdates the start by five minutes, so that this is half a minute to two minutes after it was issued.
var rotationLimit = patiently(6 * time.Minute)

const signingDuration = 3 * time.Minute

// TestJoinRotation checks that a kubelet's certificates are renewed without an effect on pods.
func TestJoinRotation(t *testing.T) {
	t.Parallel() // with TestJoin, because it waits most of the time
	c := newJoined(t, "rotation", 2, "--cluster-signing-duration="+signingDuration.String())
	const i = 1
	c.control().up()
	c.control().importImage()
	c.join(i, c.invite())
	c.nodes[i].importImage()
	c.apply()
	pods := func() string {
		return c.control().kubectl("get", "pod", podName(i), "-o",
			"jsonpath={.status.containerStatuses[*].restartCount} {.status.containerStatuses[*].state.running.startedAt} {.metadata.uid}")
	}
	kubelet := func() string {
		s := c.nodes[i].status()
		k := s.Component("kubelet")
		assert.Assert(t, k != nil)
		return fmt.Sprintf("pid %d, %d restarts", k.PID, k.Restarts)
	}
	podsBefore, kubeletBefore := pods(), kubelet()
	before := map[string]string{}
	for _, kind := range []string{"client", "server"} {
		eventually(t, podLimit, "a certificate as "+kind, func() (err error) {
			before[kind], err = c.serial(i, kind)
			return err
		})
	}
	for kind, serial := range before {
		eventually(t, rotationLimit, "the next certificate as "+kind, func() error {
			now, err := c.serial(i, kind)
			if err == nil && now == serial {
				err = errors.New("it is still " + serial)
			}
			return err
		})
	}
	assert.Equal(t, c.readiness(i), "True")
	assert.Equal(t, c.control().kubectl("logs", podName(i)), "serving\n")
	assert.Equal(t, strings.TrimSpace(c.control().kubectl("exec", podName(i), "--", "cat", "/etc/hostname")), podName(i))
	assert.Equal(t, pods(), podsBefore)
	assert.Equal(t, kubelet(), kubeletBefore)
	eventually(t, podLimit, "the worker's certificates, its authority and its kubeconfig are valid", func() error {
		s := c.nodes[i].status()
		cond := s.Condition(status.ConditionCertificates)
		if cond == nil || !cond.OK || !strings.Contains(cond.Message, "the first of 4 certificates expires at ") {
			return fmt.Errorf("%+v", cond)
		}
		return nil
	})
}

// serial returns the serial number of the kubelet's certificate of a kind.
func (c *joined) serial(i int, kind string) (string, error) {
	c.t.Helper()
	file := filepath.Join(layout.InsideKubeletPKI, "kubelet-"+kind+"-current.pem")
	out, stderr, code := c.nodes[i].try(podLimit, "exec", "--", "cat", file)
	if code != 0 {
		return "", errors.New(stderr)
	}
	for rest := []byte(out); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return "", errors.New("no certificate in " + file)
		}
		if block.Type == "CERTIFICATE" {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return "", err
			}
			return cert.SerialNumber.Text(16), nil
		}
	}
}
