package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// envRecoveryRounds is the number of copies of TestPowerLoss.
const envRecoveryRounds = "ROOTLESSNODE_RECOVERY_ROUNDS"

// TestPowerLoss copies the data dir of a node at random moments, while pods and ConfigMaps are created and deleted, and starts a node with
// each copy, as after a power failure. Half of the copies are made while the node is frozen, which is a state that a disk can have, the others
// while it writes. The node must become Ready and have all ConfigMaps whose creation was acknowledged before the copy began.
func TestPowerLoss(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv(envRecoveryRounds))
	if err != nil || rounds == 0 {
		t.Skipf("set %s to the number of rounds", envRecoveryRounds)
	}
	n := newNode(t, "e2e-power")
	n.up()
	n.importImage()
	n.down()
	first := n.status().DataDir
	data, err := filepath.EvalSymlinks(t.TempDir())
	assert.NilError(t, err)
	args := n.args
	for round := range rounds {
		next := filepath.Join(data, strconv.Itoa(round))
		n.losePower(round, next)
		n.args = append(args[:len(args):len(args)], "--data-dir", next)
	}
	n.run(downLimit, "down", "--delete-data") // of the last copy
	for range rounds - 1 {
		n.run(downLimit, "down", "--delete-data")
	}
	assert.Equal(t, n.status().DataDir, first)
}

// losePower starts the node, copies its data to next while it works, kills everything and starts the node with the copy.
func (n *testNode) losePower(round int, next string) {
	n.t.Helper()
	n.up()
	writers := n.writers(round)
	pause := time.Duration(rand.Int64N(int64(3 * time.Second)))
	time.Sleep(pause) // the moment of the copy is random
	s := n.status()
	frozen := round%2 == 0
	freeze := filepath.Join(s.Cgroup.Path, "cgroup.freeze")
	acknowledged := writers.acknowledged.Load()
	if frozen {
		assert.NilError(n.t, os.WriteFile(freeze, []byte("1"), 0))
	}
	n.copyData(s, next)
	if frozen {
		assert.NilError(n.t, os.WriteFile(freeze, []byte("0"), 0))
	}
	writers.stop()
	kill(n.t, s.ParentPID)
	n.run(downLimit, "down", "--ended")
	noTrace(n.t, n.name)

	began := time.Now()
	n.run(upLimit, append(append([]string{"up"}, n.args...), "--data-dir", next)...)
	n.t.Logf("round %d: copy %v after the start, frozen %v, %d writes acknowledged, ready after %v", round, pause, frozen, acknowledged, time.Since(began))
	have := n.kubectl("get", "configmaps", "-o", "jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}")
	for i := range acknowledged {
		assert.Assert(n.t, strings.Contains(have, fmt.Sprintf("churn-%d-%d\n", round, i)), "acknowledged write %d of %d is lost: %s", i, acknowledged, have)
	}
	n.kubectl("delete", "pod", "-l", "churn=yes", "--now", "--ignore-not-found")
	n.kubectl("run", "later", "--image="+testImage, "--restart=Never", "--command", "--", "/bin/sh", "-c", "trap exit TERM; sleep 3600 & wait")
	n.waitPod("later")
	n.kubectl("delete", "pod", "later", "--now")
	assert.Equal(n.t, n.status().State, status.NodeReady)
	n.down()
}

// copyData copies a data dir with the owners of the files, as root of the node's user namespace. A running node may remove files meanwhile.
func (n *testNode) copyData(s status.Status, to string) {
	n.t.Helper()
	pid := strconv.Itoa(s.ChildPID)
	out, err := exec.Command("nsenter", "--user", "--preserve-credentials", "--target", pid, "cp", "-a", s.DataDir, to).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		assert.Assert(n.t, strings.Contains(line, "No such file or directory"), "%v: %s", err, out)
	}
	_ = os.Remove(layout.NewData(to).LastExit()) // it belongs to the run before
}

// writers create ConfigMaps and pods until they are stopped.
type writers struct {
	// acknowledged is the number of ConfigMaps whose creation was acknowledged.
	acknowledged atomic.Int64
	cancel       context.CancelFunc
	done         sync.WaitGroup
}

func (n *testNode) writers(round int) *writers {
	ctx, cancel := context.WithCancel(n.t.Context())
	c := &writers{cancel: cancel}
	c.done.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("churn-%d-%d", round, i)
			if n.command(ctx, "kubectl", "create", "configmap", name, "--from-literal=x="+strings.Repeat("x", 4096)).Run() != nil {
				return
			}
			c.acknowledged.Add(1)
		}
	})
	c.done.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("churn-%d-%d", round, i)
			_ = n.command(ctx, "kubectl", "run", name, "--image="+testImage, "--labels=churn=yes", "--restart=Always", "--command", "--", "/bin/sh", "-c", "sleep 3600").Run()
			if i > 2 {
				_ = n.command(ctx, "kubectl", "delete", "pod", fmt.Sprintf("churn-%d-%d", round, i-3), "--now", "--wait=false").Run()
			}
		}
	})
	return c
}

func (c *writers) stop() {
	c.cancel()
	c.done.Wait()
}
