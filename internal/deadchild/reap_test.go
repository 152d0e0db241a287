package deadchild

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/poll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 50 * time.Millisecond

// TestReapOrphans makes this process a child subreaper, so that it gets orphans like process 1.
func TestReapOrphans(t *testing.T) {
	assert.NilError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer func() { assert.NilError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)) }()
	stop := ReapOrphans(soon)
	defer stop()
	out, err := exec.Command("sh", "-c", "for i in 1 2 3 4 5; do true & echo $!; done").Output()
	assert.NilError(t, err)
	orphans := strings.Fields(string(out))
	assert.Equal(t, len(orphans), 5)
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		for _, o := range orphans {
			pid, err := strconv.Atoi(o)
			if err != nil {
				return poll.Error(err)
			}
			if unix.Kill(pid, 0) == nil {
				return poll.Continue("process %d still exists", pid)
			}
		}
		return poll.Success()
	}, poll.WithTimeout(30*time.Second))
}

// TestNotTaken checks that code that waits for a child gets it while many other children end.
func TestNotTaken(t *testing.T) {
	stop := ReapOrphans(30 * time.Second)
	defer stop()
	done := make(chan error)
	for range 8 {
		go func() {
			for range 20 {
				if err := exec.Command("true").Run(); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 8 {
		assert.NilError(t, <-done)
	}
}

func TestByPID(t *testing.T) {
	cmd := exec.Command("sh", "-c", "exit 3")
	assert.NilError(t, cmd.Start())
	var found Child
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		var is bool
		if found, is = ByPID(cmd.Process.Pid); !is {
			return poll.Continue("the child has not ended yet")
		}
		return poll.Success()
	}, poll.WithTimeout(30*time.Second))
	assert.Equal(t, found, Child{cmd.Process.Pid, "exited with status 3"})
	assert.ErrorContains(t, cmd.Wait(), "exit status 3")
	_, is := ByPID(cmd.Process.Pid)
	assert.Assert(t, !is)
}
