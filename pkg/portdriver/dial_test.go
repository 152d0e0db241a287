package portdriver

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// envDial marks the process of TestDialUntil in its own network namespace.
const envDial = "ROOTLESSNODE_TEST_DIAL"

// TestDialUntil tests connections to a Service of which every other pod has ended, without an answer.
func TestDialUntil(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.UserNS, testutil.Program("ip"), testutil.Program("nft"))
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestDialUntilInside$", "-test.v")
	cmd.Env = append(os.Environ(), envDial+"=1", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	assert.NilError(t, err)
	assert.Check(t, is.Contains(string(out), "--- PASS: TestDialUntilInside"))
}

// service forwards connections to 192.0.2.1:80 in turn to a pod that does not answer and to 192.0.2.3:8080, as kube-proxy does.
const service = `
table ip service {
	chain output {
		type nat hook output priority -100;
		ip daddr 192.0.2.1 tcp dport 80 dnat to numgen inc mod 2 map { 0 : 192.0.2.2, 1 : 192.0.2.3 }:8080
	}
	chain input {
		type filter hook input priority 0;
		ip daddr 192.0.2.2 drop
	}
}
`

// TestDialUntilInside is the part of TestDialUntil that runs in the namespace.
func TestDialUntilInside(t *testing.T) {
	if os.Getenv(envDial) == "" {
		t.Skip("part of TestDialUntil")
	}
	const client = "192.0.2.7"
	run := func(input string, argv ...string) {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		assert.NilError(t, err, "%v: %s", argv, out)
	}
	run("", "ip", "link", "set", "lo", "up")
	for _, ip := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", client} {
		run("", "ip", "addr", "add", ip+"/32", "dev", "lo")
	}
	run(service, "nft", "-f", "-")
	ln, err := net.Listen("tcp4", "192.0.2.3:8080")
	assert.NilError(t, err)
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 2 { // with two attempts each
		c, err := dialUntil(ctx, net.Dialer{}, "tcp", "192.0.2.1:80")
		assert.NilError(t, err)
		assert.NilError(t, c.Close())
		accepted, err := ln.Accept()
		assert.NilError(t, err)
		assert.NilError(t, accepted.Close())

		c, err = dialAs(ctx, &net.TCPAddr{IP: net.ParseIP(client), Port: 4000}, "tcp", "192.0.2.1:80")
		assert.NilError(t, err)
		assert.NilError(t, c.Close())
		accepted, err = ln.Accept()
		assert.NilError(t, err)
		from := accepted.RemoteAddr().(*net.TCPAddr)
		assert.Check(t, from.IP.String() == client && from.Port != 4000, "%v", from)
		assert.NilError(t, accepted.Close())
	}

	// The caller decides for how long.
	run("", "nft", "add", "rule", "ip", "service", "input", "ip", "daddr", "192.0.2.3", "drop")
	ctx, cancel = context.WithTimeout(t.Context(), 2*firstDial)
	defer cancel()
	_, err = dialUntil(ctx, net.Dialer{}, "tcp", "192.0.2.1:80")
	assert.Check(t, is.ErrorContains(err, "i/o timeout"))
	ln.Close()
	run("", "nft", "flush", "chain", "ip", "service", "input")
	_, err = dialUntil(t.Context(), net.Dialer{}, "tcp", "192.0.2.3:8080")
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
}
