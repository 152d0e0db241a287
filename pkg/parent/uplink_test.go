package parent

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// uplinks returns the network drivers that run a process on the host, with a pattern for the name of the process.
func uplinks() map[string]string {
	return map[string]string{config.DriverSlirp: "slirp4netns", config.DriverPasta: "^(pasta|passt)"}
}

// uplinkPID returns the pid of the network driver's process. It is a child of the parent, although pasta daemonizes.
func uplinkPID(t *testing.T, cmd *exec.Cmd, pattern string) int {
	t.Helper()
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(cmd.Process.Pid), pattern).Output()
	assert.NilError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	assert.NilError(t, err)
	return pid
}

// TestUplinkKilled checks that the end of the network process stops the node and is reported.
func TestUplinkKilled(t *testing.T) {
	t.Parallel()
	for driver, pattern := range uplinks() {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			testutil.Require(t, testutil.Program(driver))
			r := newRig(t)
			r.cfg.Network.Driver = driver
			cmd, output := r.start("")
			cgroup, _ := r.ready()
			assert.NilError(t, syscall.Kill(uplinkPID(t, cmd, pattern), syscall.SIGKILL))
			assert.Equal(t, r.ends(cmd, output), errdefs.ExitComponent)
			assert.Assert(t, cmp.Contains(output.String(), "the network process ("+driver))
			assert.Assert(t, cmp.Contains(output.String(), "killed"))
			r.gone(cgroup)
		})
	}
}

// TestUplinkEnds checks that no network process remains after an orderly stop, also if the signal went to the network process too, as
// from a terminal.
func TestUplinkEnds(t *testing.T) {
	t.Parallel()
	for driver, pattern := range uplinks() {
		for _, all := range []bool{false, true} {
			t.Run(driver+map[bool]string{true: "/all", false: "/node"}[all], func(t *testing.T) {
				t.Parallel()
				testutil.Require(t, testutil.Program(driver))
				r := newRig(t)
				r.cfg.Network.Driver = driver
				cmd, output := r.start("")
				cgroup, _ := r.ready()
				pid := uplinkPID(t, cmd, pattern)
				assert.NilError(t, cmd.Process.Signal(syscall.SIGTERM))
				if all {
					err := syscall.Kill(pid, syscall.SIGTERM)
					assert.Assert(t, err == nil || errors.Is(err, syscall.ESRCH), "%v", err)
				}
				assert.Equal(t, r.ends(cmd, output), 0, "%s", output)
				r.gone(cgroup)
				assert.Assert(t, !lives(pid), "the network process is still running")
				_, err := os.Stat(r.data.LastExit())
				assert.Assert(t, errors.Is(err, os.ErrNotExist), "a requested stop must not be reported as an error")
			})
		}
	}
}
