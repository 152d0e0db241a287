package parent

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// stop sends signals to the parent, as node.Stop does, and checks that the stop is an orderly one that leaves nothing.
func (r *rig) stop(cmd *exec.Cmd, output *strings.Builder, cgroup string) {
	r.t.Helper()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
		assert.NilError(r.t, cmd.Process.Signal(s))
	}
	assert.Equal(r.t, r.ends(cmd, output), 0, "%s", output)
	r.gone(cgroup)
	_, err := os.Stat(r.data.LastExit())
	assert.Assert(r.t, errors.Is(err, os.ErrNotExist), "an orderly stop must not be reported as an error")
}

// TestStopsAtAnyTime checks that a stop is not lost in any phase of a start. ROOTLESSNODE_E2E_ROUNDS is the number of rounds.
func TestStopsAtAnyTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rounds := 20
	if v, err := strconv.Atoi(os.Getenv("ROOTLESSNODE_E2E_ROUNDS")); err == nil {
		rounds = v
	}
	const longest = 200 * time.Millisecond // a start takes about 150 ms
	for range rounds {
		cmd, output := r.start("")
		r.eventually("the parent is locked", func() error {
			if h, err := Holder(r.rt, r.data); err != nil || h.ParentPID == 0 {
				return errors.New("not locked")
			}
			return nil
		})
		<-time.After(rand.N(longest)) // chooses the phase; the result must be the same in all of them
		r.stop(cmd, output, "")
	}
}

// TestStopsFrozen checks that processes that are stopped with SIGSTOP do not prevent an orderly stop.
func TestStopsFrozen(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"parent", "child", "node role"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			cmd, output := r.start("")
			cgroup, h := r.ready()
			pids := map[string]int{"parent": h.ParentPID, "child": h.ChildPID}
			for s := range proc.Host.Stats() {
				if s.Parent == h.ChildPID {
					pids["node role"] = s.PID
				}
			}
			frozen, err := proc.Open(pids[role])
			assert.NilError(t, err)
			defer frozen.Close()
			assert.NilError(t, frozen.Signal(syscall.SIGSTOP))
			r.stop(cmd, output, cgroup)
		})
	}
}

// TestRuntimeLost checks that a node whose runtime dir was removed is found, is not started twice, and stops in order.
func TestRuntimeLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cmd, output := r.start("")
	cgroup, h := r.ready()
	assert.NilError(t, os.RemoveAll(filepath.Dir(r.rt.Dir)))
	holder, err := Holder(r.rt, r.data)
	assert.NilError(t, err)
	assert.Equal(t, holder, LockHolder{Locked: true, ParentPID: cmd.Process.Pid, RuntimeLost: true})

	second, text := r.start("")
	assert.Equal(t, r.ends(second, text), errdefs.ExitOther)
	assert.Assert(t, cmp.Contains(text.String(), "already running (parent pid "+strconv.Itoa(cmd.Process.Pid)))
	assert.Assert(t, lives(h.ChildPID))
	_, err = os.Stat(filepath.Dir(r.rt.Dir))
	assert.Assert(t, errors.Is(err, os.ErrNotExist), "the second start has left files")
	r.stop(cmd, output, cgroup)
}

// TestLeftovers checks that RemoveLeftovers cleans up after a node that was killed together with its guard, and that KillHolders kills a
// guard that does not end.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cmd, output := r.start("")
	cgroup, h := r.ready()
	guard := proc.Host.Openers(r.rt.Lock())
	assert.Equal(t, len(guard), 2, "parent and guard")
	assert.ErrorIs(t, RemoveLeftovers(r.rt), errdefs.ErrAlreadyRunning)
	for _, pid := range guard {
		if pid != cmd.Process.Pid {
			p, err := proc.Open(pid)
			assert.NilError(t, err)
			assert.NilError(t, p.Signal(syscall.SIGSTOP))
			p.Close()
		}
	}
	assert.NilError(t, cmd.Process.Kill())
	r.ends(cmd, output)
	holder, err := Holder(r.rt, r.data)
	assert.NilError(t, err)
	assert.Equal(t, holder, LockHolder{Locked: true})
	assert.NilError(t, KillHolders(r.rt, r.data))
	r.eventually("the guard ends", func() error { return RemoveLeftovers(r.rt) })
	r.gone(cgroup)
	assert.Assert(t, !lives(h.ChildPID), "the child is still running")
	assert.NilError(t, RemoveLeftovers(r.rt))
}

// TestDataLock checks that a data dir is not used by two nodes, and that a data dir without support for locks can be used.
func TestDataLock(t *testing.T) {
	t.Parallel()
	d := layout.NewData(t.TempDir())
	lock, err := takeDataLock(d, "x")
	assert.NilError(t, err)
	_, err = takeDataLock(d, "x")
	assert.ErrorIs(t, err, errdefs.ErrAlreadyRunning)
	assert.NilError(t, lock.Close())
	assert.NilError(t, os.Remove(d.Lock()))
	assert.NilError(t, os.Mkdir(d.Lock(), 0o700)) // cannot be opened as a file
	lock, err = takeDataLock(d, "x")
	assert.NilError(t, err)
	assert.Assert(t, lock.File == nil)
	assert.NilError(t, lock.Close())
}
