package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// portEverywhere is the node port of all echo pods.
const portEverywhere = 31180

// joined is a cluster with one node on each host. The first node has the control plane, the others join it.
type joined struct {
	t     *testing.T
	hosts []*testHost
	nodes []*testNode // nodes[i] runs on hosts[i]
}

// newJoined creates the hosts without starting nodes. extra has additional flags of kube-controller-manager.
func newJoined(t *testing.T, name string, count int, extra string) *joined {
	t.Helper()
	return newJoinedOn(t, name, newHosts(t, count), extra)
}

// newJoinedOn is newJoined with existing hosts.
func newJoinedOn(t *testing.T, name string, hosts []*testHost, extra string) *joined {
	t.Helper()
	c := &joined{t: t, hosts: hosts}
	for i, h := range c.hosts {
		n := h.node("e2e-"+name+"-"+letter(i), "--set", "nodeName="+objectName(i))
		c.nodes = append(c.nodes, n)
	}
	first := c.nodes[0]
	first.args = append(first.args, "--set", "api.bindAddress="+string(c.hosts[0].ip), "--set", "controlPlane.etcdUnsafeNoFsync=true",
		"--set", "controlPlane.controllerManagerExtraArgs=["+extra+"]")
	return c
}

func letter(i int) string { return string(rune('a' + i)) }

// objectName returns the name of a host's Node object.
func objectName(i int) string { return "host-" + letter(i) }

func podName(i int) string { return "echo-" + letter(i) }

// in returns the cluster for a subtest.
func (c *joined) in(t *testing.T) *joined {
	d := &joined{t: t}
	for i := range c.hosts {
		h := *c.hosts[i]
		h.t = t
		d.hosts, d.nodes = append(d.hosts, &h), append(d.nodes, c.nodes[i].in(t))
	}
	return d
}

// part runs a subtest on which later subtests depend.
func (c *joined) part(name string, f func(c *joined)) {
	c.t.Helper()
	if !c.t.Run(name, func(t *testing.T) { f(c.in(t)) }) {
		c.t.FailNow()
	}
}

// control returns the node with the control plane. The tests use its kubectl.
func (c *joined) control() *testNode { return c.nodes[0] }

var (
	tokenText = regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`)
	hashText  = regexp.MustCompile(`\bsha256:[0-9a-f]{64}\b`)
)

// invitation is the command line for joining that `token create` prints.
type invitation struct{ line, token, hash, server string }

func (c *joined) invite(args ...string) invitation {
	c.t.Helper()
	out := c.control().run(podLimit, append([]string{"token", "create"}, args...)...)
	v := invitation{token: tokenText.FindString(out), hash: hashText.FindString(out), server: c.control().status().APIServer}
	for line := range strings.Lines(strings.ReplaceAll(out, "\\\n", " ")) {
		if strings.Contains(line, " --join ") {
			v.line = strings.TrimSpace(line)
		}
	}
	assert.Assert(c.t, v.line != "" && v.token != "" && v.hash != "", "token create did not print a complete command: %s", out)
	assert.Assert(c.t, cmp.Contains(v.line, v.server))
	return v
}

// secret returns the secret part of the token.
func (v invitation) secret() string {
	_, secret, _ := strings.Cut(v.token, ".")
	return secret
}

// with returns the command line with old replaced by now.
func (v invitation) with(old, now string) string { return strings.ReplaceAll(v.line, old, now) }

// own adds the host's names to a command line. Node ports listen on the host's own address by default.
func (c *joined) own(i int, line string) string {
	return fmt.Sprintf("%s --name %s --set nodeName=%s --timeout %v", line, c.nodes[i].name, objectName(i), upLimit-10*time.Second)
}

// join runs an invitation's command line on a host and waits until the cluster has the Node. Later calls of up need no token.
func (c *joined) join(i int, v invitation) {
	c.t.Helper()
	n := c.nodes[i]
	watched := func() error { return nil } // the processes of a virtual machine are not visible here
	if c.hosts[i].login == nil {
		watched = watchProcesses(n.name, v.secret())
	}
	began := time.Now()
	out, code := c.hosts[i].paste(upLimit, c.own(i, v.line))
	took := time.Since(began)
	seen := watched()
	assert.Equal(c.t, code, 0, "%s did not join:\n%s", objectName(i), out)
	assert.NilError(c.t, seen)
	c.waitNode(i)
	c.t.Logf("%s: up took %.1f s, Ready in the cluster after %.1f s", objectName(i), took.Seconds(), time.Since(began).Seconds())
	assert.Assert(c.t, !strings.Contains(out, v.secret()), "up prints the token's secret")
	n.args = []string{"--join", v.server, "--ca-cert-hash", v.hash, "--set", "nodeName=" + objectName(i)}
}

func (c *joined) waitNode(i int) {
	c.t.Helper()
	c.control().kubectl("wait", "--for=condition=Ready", "node/"+objectName(i), "--timeout", (podLimit - 5*time.Second).String())
}

// watchProcesses looks for a secret in the command lines of all processes, and in the environments of the node's processes, from the
// start of the node. `up` hides its own argument before that. The returned function stops watching and reports a found secret.
func watchProcesses(name, secret string) (end func() error) {
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(pollEvery)
		defer tick.Stop()
		looks := 0
		for {
			select {
			case <-stop:
				if looks == 0 {
					done <- errors.New("the node never had a process")
					return
				}
				done <- nil
				return
			case <-tick.C:
			}
			own := processes(name)
			if len(own) == 0 {
				continue
			}
			looks++
			if err := findSecret(own, secret); err != nil {
				done <- err
				return
			}
		}
	}()
	return func() error { close(stop); return <-done }
}

func findSecret(own []string, secret string) error {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is a constant
	for _, p := range own {
		pid, _, _ := strings.Cut(p, " ")
		files = append(files, "/proc/"+pid+"/environ")
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), secret) {
			return fmt.Errorf("%s contains the token's secret: %s", f, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return nil
}

// keptSecret checks that the secret is neither in the account's logs nor in files that other accounts can access.
func (h *testHost) keptSecret(secret string) {
	h.t.Helper()
	logs := 0
	for _, root := range []string{h.home(), h.runtimeDir()} {
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if errors.Is(err, os.ErrNotExist) || err == nil && !d.Type().IsRegular() {
				return nil // pods and their files come and go
			}
			if err != nil {
				return err
			}
			st, err := d.Info()
			log := strings.HasSuffix(path, ".log")
			if err != nil || !log && st.Mode().Perm()&0o077 == 0 {
				return nil
			}
			if log {
				logs++
			}
			b, err := os.ReadFile(path)
			if err == nil && strings.Contains(string(b), secret) {
				err = fmt.Errorf("%s (%v) contains the token's secret", path, st.Mode())
			}
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		})
		assert.NilError(h.t, err)
	}
	assert.Assert(h.t, logs > 0, "%s has no logs", h.home())
}

// TestJoin tests a cluster of three hosts from the first start to the removal of a node. Each host has its own account and node. The
// test acts as root of the hosts.
func TestJoin(t *testing.T) {
	t.Parallel() // with TestJoinRotation
	c := newJoined(t, "join", 3, "--node-monitor-grace-period=20s")
	c.control().args = append(c.control().args, "--set", "api.extraSANs=*.wild.e2e.test")
	const b, last = 1, 2
	sub := c.part
	var v invitation
	sub("the first host", func(c *joined) {
		c.control().up()
		c.control().importImage()
		v = c.invite("--reusable")
	})
	sub("faults", func(c *joined) { c.faults(b, v) })
	for _, i := range []int{b, last} {
		sub(objectName(i)+" joins with the printed command", func(d *joined) {
			d.join(i, v)
			c.nodes[i].args = d.nodes[i].args
			d.nodes[i].importImage()
		})
	}
	sub("the token stays secret", func(c *joined) {
		for _, h := range c.hosts {
			h.keptSecret(v.secret())
		}
	})
	sub("Nodes have their hosts' addresses", func(c *joined) { c.addresses() })
	c.apply()
	sub("logs, exec, port-forward and cp on every node", func(c *joined) { c.use() })
	sub("pods reach pods", func(c *joined) { c.traffic() })
	sub("a node port answers on every host", func(c *joined) { c.nodePorts() })
	sub("a worker can change only its own Node", func(c *joined) { c.confined(b, last) })
	sub("a host's parent is killed", func(c *joined) { c.killed(b) })
	sub("a Node is deleted", func(d *joined) {
		d.deleted(b)
		c.nodes[b].args = d.nodes[b].args
	})
	sub("drain-and-leave", func(c *joined) {
		gone := c.thief(last)
		c.leaves(last)
		gone.staysOut()
	})
}

// addresses checks that the Nodes have the addresses of their hosts, and no taint of the time before they were ready.
func (c *joined) addresses() {
	c.t.Helper()
	for i, h := range c.hosts {
		got := c.control().kubectl("get", "node", objectName(i), "-o",
			`jsonpath={.status.addresses[?(@.type=="InternalIP")].address} {.spec.taints}`)
		assert.Equal(c.t, strings.TrimSpace(got), string(h.ip), "%s: InternalIP and taints", objectName(i))
		roles := strings.Fields(c.control().kubectl("get", "node", objectName(i), "--no-headers"))[2]
		assert.Equal(c.t, roles, map[bool]string{true: "control-plane,worker", false: "worker"}[i == 0], "%s: roles", objectName(i))
	}
}
