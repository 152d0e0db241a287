package e2e

import (
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// result is the end of a command.
type result struct {
	args   string
	output string
	code   int
}

// background starts a command and returns a channel for its result.
func (n *testNode) background(args ...string) <-chan result {
	n.t.Helper()
	done := make(chan result, 1)
	cmd := n.command(n.t.Context(), args...)
	go func() {
		out, _ := cmd.CombinedOutput() // the exit code is checked
		done <- result{strings.Join(args, " "), string(out), cmd.ProcessState.ExitCode()}
	}()
	return done
}

func (n *testNode) startUp() <-chan result {
	n.t.Helper()
	return n.background(append([]string{"up", "--timeout", upLimit.String()}, n.args...)...)
}

// TestTwoStartsAtOnce checks that only one of several concurrent starts of a node starts it, that the others report the running node, and
// that concurrent stops are one orderly stop.
func TestTwoStartsAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, "e2e-twice")
	for range rounds(1) {
		var starts []<-chan result
		for range 4 {
			starts = append(starts, n.startUp())
		}
		won := 0
		for _, start := range starts {
			r := <-start
			if !strings.Contains(r.output, "already running") {
				assert.Equal(t, r.code, 0, r.output)
				won++
			}
		}
		assert.Equal(t, won, 1)
		assert.Equal(t, n.status().State, status.NodeReady)
		for _, stop := range []<-chan result{n.background("down"), n.background("down")} {
			r := <-stop
			assert.Equal(t, r.code, 0, r.output)
		}
		noTrace(t, n.name)
		assert.Equal(t, n.status().State, status.NodeStopped)
	}
}

// TestDownDuringUp checks that a down at a random moment of an up is not lost, and leaves nothing.
func TestDownDuringUp(t *testing.T) {
	t.Parallel()
	n := newNode(t, "e2e-down")
	began := time.Now()
	n.up()
	took := time.Since(began)
	t.Run("frozen processes", func(t *testing.T) { n.in(t).stopsFrozen() })
	for range rounds(1) {
		n.downAfter(rand.N(took))
	}
	n.interruptedRemovals(rounds(1))
}

// downAfter runs down some time after up has started.
func (n *testNode) downAfter(pause time.Duration) {
	n.t.Helper()
	start := n.startUp()
	<-time.After(pause) // chooses the phase of up; the result must be the same in all of them
	stdout, stderr, code := n.try(downLimit, "down")
	assert.Equal(n.t, code, 0, "down %v after up: %s%s", pause, stdout, stderr)
	if strings.Contains(stdout, "is not running") { // before the parent was started
		r := <-start
		assert.Equal(n.t, r.code, 0, "down %v after up: the node was not running, but up failed: %s", pause, r.output)
		n.down()
	} else {
		assert.Assert(n.t, cmp.Contains(stdout, "stopped"))
		noTrace(n.t, n.name)
		r := <-start
		assert.Assert(n.t, r.code != 0 || strings.Contains(r.output, "is Ready"), "down %v after up: %s", pause, r.output)
		noBareError(n.t, r)
	}
	noTrace(n.t, n.name)
	s := n.status()
	assert.Equal(n.t, s.State, status.NodeStopped, "down %v after up: %s", pause, s.Reason)
}

// stopsFrozen checks that status and down have a time limit when a process of the node is stopped with SIGSTOP, and that a node without
// its runtime dir can be stopped. The node is running before, and not afterwards.
func (n *testNode) stopsFrozen() {
	n.t.Helper()
	s := n.status()
	role := nodeRole(n.t, s.ChildPID)
	assert.NilError(n.t, syscall.Kill(role, syscall.SIGSTOP))
	frozen := n.status()
	assert.Equal(n.t, frozen.State, status.NodeDegraded)
	assert.Assert(n.t, cmp.Contains(frozen.Reason, "does not respond"))
	assert.Assert(n.t, len(frozen.Failure.Hints) > 0)
	assert.NilError(n.t, os.RemoveAll(s.RuntimeDir))
	lost := n.status()
	assert.Equal(n.t, lost.State, status.NodeDegraded)
	assert.Assert(n.t, cmp.Contains(lost.Reason, "was removed while the node is running"))
	_, stderr, code := n.try(podLimit, append([]string{"up"}, n.args...)...)
	assert.Equal(n.t, code, 1)
	assert.Assert(n.t, cmp.Contains(stderr, "already running"))
	n.run(downLimit, "down", "--timeout", "60s") // an orderly stop
	noTrace(n.t, n.name)
}

// interruptedRemovals checks that a removal of the data that was killed or interrupted can be repeated.
func (n *testNode) interruptedRemovals(rounds int) {
	n.t.Helper()
	signals := []os.Signal{syscall.SIGKILL, os.Interrupt}
	for i := range rounds {
		sig := signals[i%len(signals)]
		n.up()
		n.down()
		cmd := n.command(n.t.Context(), "down", "--delete-data")
		assert.NilError(n.t, cmd.Start())
		<-time.After(rand.N(300 * time.Millisecond)) // chooses the phase of the removal
		_ = cmd.Process.Signal(sig)                  // may have ended already
		_ = cmd.Wait()                               // any result
		eventually(n.t, downLimit, "the removal succeeds", func() error {
			_, stderr, code := n.try(downLimit, "down", "--delete-data")
			if code != 0 {
				return &removalError{stderr}
			}
			return nil
		})
		_, err := os.Stat(n.status().DataDir)
		assert.Assert(n.t, os.IsNotExist(err), "%v", err)
		noTrace(n.t, n.name)
	}
}

type removalError struct{ stderr string }

func (e *removalError) Error() string { return e.stderr }
