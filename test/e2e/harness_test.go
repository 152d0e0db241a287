// Package e2e tests the command line of rootlessnode with real components, as an ordinary user. It checks only what that user
// sees: output, exit codes, processes, files.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// envOut names the build output, a tree with bin/ and libexec/ that the user of the test can read.
const envOut = "ROOTLESSNODE_E2E_OUT"

// envPatience multiplies the time limits of the tests, because an emulated machine is slow.
const envPatience = "ROOTLESSNODE_E2E_PATIENCE"

// Time limits. They are far above what a loaded two-core machine needs, because tests do not measure.
var (
	upLimit   = patiently(4 * time.Minute)
	downLimit = patiently(2 * time.Minute)
	podLimit  = patiently(2 * time.Minute)
)

const pollEvery = 100 * time.Millisecond

func patiently(d time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv(envPatience)); err == nil && n > 1 {
		return d * time.Duration(n)
	}
	return d
}

// built requires the binaries and components under test.
var built = testutil.Requirement{Name: "e2e-build", Check: func() error {
	out := os.Getenv(envOut)
	if out == "" {
		return fmt.Errorf("%s is not set; run make test-e2e", envOut)
	}
	_, err := os.Stat(filepath.Join(out, "bin", "rootlessnode"))
	return err
}}

// delegated replaces testutil.DelegatedCgroup. It also accepts a user manager that can create a delegated cgroup.
var delegated = testutil.Requirement{Name: testutil.DelegatedCgroup.Name, Check: func() error {
	var o cgroupv2.Options
	h, err := cgroupv2.DetectHost(o)
	if err == nil {
		_, err = cgroupv2.Detect(h, o)
	}
	return err
}}

func require(t *testing.T) {
	t.Helper()
	testutil.Require(t, built, testutil.OrdinaryUser, testutil.Subids, delegated)
}

func binary(name string) string { return filepath.Join(os.Getenv(envOut), "bin", name) }

// testNode is a node under test: a name and an API port that no other test uses.
type testNode struct {
	t    *testing.T
	name string
	args []string // flags of up
	wrap []string // prefix of every command line, for a node of another account
	env  []string // additional environment of every command
}

// newNode returns a node for a test. Its data and processes are removed when the test ends.
func newNode(t *testing.T, name string, upArgs ...string) *testNode {
	t.Helper()
	require(t)
	return newNodeOf(t, name, nil, upArgs...)
}

// newNodeOf is newNode for another account. wrap is the prefix that runs a command as that account.
func newNodeOf(t *testing.T, name string, wrap []string, upArgs ...string) *testNode {
	t.Helper()
	n := &testNode{t: t, name: name, args: upArgs, wrap: wrap}
	n.args = append(n.args, "--set", fmt.Sprintf("api.port=%d", freePort(t)), "--reset-config") // flags of earlier starts do not count
	t.Cleanup(func() {
		if t.Failed() {
			n.bundle()
		}
		ctx, cancel := context.WithTimeout(context.Background(), downLimit)
		defer cancel()
		out, err := n.command(ctx, "down", "--delete-data").CombinedOutput()
		if err != nil {
			t.Errorf("down --delete-data: %v\n%s", err, out)
		}
	})
	return n
}

func (n *testNode) command(ctx context.Context, args ...string) *exec.Cmd {
	argv := slices.Concat(n.wrap, []string{binary("rootlessnode"), "--name", n.name}, args)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(cmd.Environ(), n.env...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run runs a command and returns its standard output. It fails the test unless the command exits with 0 within limit.
func (n *testNode) run(limit time.Duration, args ...string) string {
	n.t.Helper()
	stdout, stderr, code := n.try(limit, args...)
	assert.Equal(n.t, code, 0, "rootlessnode %s\nstdout:\n%s\nstderr:\n%s", strings.Join(args, " "), stdout, stderr)
	return stdout
}

// try runs a command and returns its output and exit code.
func (n *testNode) try(limit time.Duration, args ...string) (stdout, stderr string, code int) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := n.command(ctx, args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		n.t.Fatalf("rootlessnode %s: %v", strings.Join(args, " "), err)
	}
	if ctx.Err() != nil {
		n.t.Fatalf("rootlessnode %s: not done within %v\n%s\n%s", strings.Join(args, " "), limit, o.String(), e.String())
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func (n *testNode) up() string {
	n.t.Helper()
	return n.run(upLimit, append([]string{"up", "--timeout", (upLimit - 10*time.Second).String()}, n.args...)...)
}

func (n *testNode) down() { n.t.Helper(); n.run(downLimit, "down") }

func (n *testNode) kubectl(args ...string) string {
	n.t.Helper()
	return n.run(podLimit, append([]string{"kubectl"}, args...)...)
}

func (n *testNode) status() status.Status {
	n.t.Helper()
	return answer[status.Status](n, "status")
}

// answer runs a command with JSON output and returns the decoded output.
func answer[T any](n *testNode, args ...string) (v T) {
	n.t.Helper()
	text := n.run(podLimit, append(args, "-o", "json")...)
	assert.NilError(n.t, json.Unmarshal([]byte(text), &v), "rootlessnode %v: %s", args, text)
	return v
}

// apply applies a manifest to the cluster.
func (n *testNode) apply(manifest string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), podLimit)
	defer cancel()
	cmd := n.command(ctx, "kubectl", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	out, err := cmd.CombinedOutput()
	assert.NilError(n.t, err, "%s", out)
}

// eventually calls check until it returns nil. After limit it fails the test with the last error.
func eventually(t *testing.T, limit time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		case <-tick.C:
		}
	}
}

// meanwhile checks that check returns nil for the whole duration.
func meanwhile(t *testing.T, duration time.Duration, what string, check func() error) {
	t.Helper()
	over := time.After(duration)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if err := check(); err != nil {
			t.Fatalf("%s: did not hold the whole time: %v", what, err)
		}
		select {
		case <-over:
			return
		case <-tick.C:
		}
	}
}

// bundle logs the output of commands that help to diagnose a failure.
func (n *testNode) bundle() {
	ctx, cancel := context.WithTimeout(context.Background(), patiently(time.Minute))
	defer cancel()
	for _, args := range [][]string{
		{"status"}, {"events"}, {"logs", "node", "--tail", "40"}, {"logs", "kubelet", "--tail", "30"},
		{"logs", "containerd", "--tail", "30"}, {"logs", "kube-proxy", "--tail", "30"},
		{"exec", "--", "nft", "list", "table", "ip", "kube-proxy"},
		{"kubectl", "get", "pods,svc,endpointslices,events", "-A", "-o", "wide"},
	} {
		out, _ := n.command(ctx, args...).CombinedOutput() // best effort
		n.t.Logf("rootlessnode %s:\n%s", strings.Join(args, " "), out)
	}
}

// usedPorts are the results of freePort.
var usedPorts sync.Map

// freePort returns a port of the host that is free and that no other call returns. It is not an ephemeral port, because the kernel could
// give such a port to any program before the node binds it, and not a node port.
func freePort(t *testing.T) int {
	t.Helper()
	const first, last = 20000, 29999
	for range last - first {
		port := first + rand.IntN(last-first+1)
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		assert.NilError(t, l.Close())
		if _, used := usedPorts.LoadOrStore(port, true); !used {
			return port
		}
	}
	t.Fatalf("no free port between %d and %d", first, last)
	return 0
}
