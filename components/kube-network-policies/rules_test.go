package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/florianl/go-nfqueue"
	"github.com/google/nftables/expr"
	"gotest.tools/v3/assert"
)

// envInside marks the test process in new user and network namespaces.
const envInside = "KUBE_NETWORK_POLICIES_TEST_INSIDE"

// A queue has a reader as long as a socket is bound to it.
func TestHasReader(t *testing.T) {
	if os.Getenv(envInside) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestHasReader$", "-test.v")
		cmd.Env = append(os.Environ(), envInside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Skipf("no user namespace can be created: %v", err)
		}
		if strings.Contains(string(out), "--- SKIP") {
			t.Skipf("%s", out)
		}
		assert.NilError(t, err, "%s", out)
		return
	}
	nf, err := nfqueue.Open(&nfqueue.Config{NfQueue: 7, MaxPacketLen: 128, MaxQueueLen: 16, Copymode: nfqueue.NfQnlCopyPacket})
	if err != nil {
		t.Skipf("this kernel has no NFQUEUE: %v", err)
	}
	has := func(queue uint16) bool {
		has, err := hasReader(queue)
		assert.NilError(t, err)
		return has
	}
	assert.Assert(t, !has(7), "before a reader is bound")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	assert.NilError(t, nf.RegisterWithErrorFunc(ctx, func(nfqueue.Attribute) int { return 0 }, func(error) int { return 0 }))
	assert.Assert(t, has(7) && has(7), "the check must not unbind the reader")
	assert.Assert(t, !has(8))
	cancel() // Close waits for the end of the reader
	assert.NilError(t, nf.Close())
	assert.Assert(t, !has(7), "after the end of the reader")
}

// One flag decides whether packets pass if the reader fails or is missing.
func TestForwardedRule(t *testing.T) {
	last := func(failOpen bool) expr.Any {
		rule := forwardedRule(7, failOpen)
		return rule[len(rule)-1]
	}
	assert.DeepEqual(t, last(false), &expr.Queue{Num: 7})
	assert.DeepEqual(t, last(true), &expr.Queue{Num: 7, Flag: expr.QueueFlagBypass})
}
