package parent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/deadchild"
	"github.com/rootlessnode/rootlessnode/internal/filewatch"
	"github.com/rootlessnode/rootlessnode/internal/layout"
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
	pid, err := findUplink(cmd, pattern)
	assert.NilError(t, err)
	return pid
}

func findUplink(cmd *exec.Cmd, pattern string) (int, error) {
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(cmd.Process.Pid), pattern).Output()
	if err != nil {
		return 0, fmt.Errorf("no child is called %s: %w", pattern, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(out)))
}

// TestUplinkKilled checks that the network process is started again after its end, with the addresses and routes of the node as before,
// and that the state is published.
func TestUplinkKilled(t *testing.T) {
	t.Parallel()
	for driver, pattern := range uplinks() {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			testutil.Require(t, testutil.Program(driver))
			r := newRig(t)
			r.cfg.Network.Driver = driver
			cmd, output := r.start("")
			cgroup, h := r.ready()
			before := networkOf(t, h.ChildPID)
			for range 3 {
				pid := uplinkPID(t, cmd, pattern)
				assert.NilError(t, syscall.Kill(pid, syscall.SIGKILL))
				r.eventually("the network process was started again", func() error {
					f, err := filewatch.JSON[layout.NetworkFault](r.rt.NetworkFault())
					if err != nil || f.Message != "" {
						return fmt.Errorf("%w: %s", err, f.Message)
					}
					now, err := findUplink(cmd, pattern)
					if err == nil && now == pid {
						err = errors.New("the former process is still there")
					}
					return err
				})
				assert.Equal(t, networkOf(t, h.ChildPID), before)
			}
			assert.NilError(t, cmd.Process.Signal(syscall.SIGTERM))
			assert.Equal(t, r.ends(cmd, output), 0, "%s", output)
			assert.Assert(t, cmp.Contains(output.String(), "the network process ended"))
			r.gone(cgroup)
		})
	}
}

// TestPortsUplinkKilled checks that the end of a network process that also forwards ports stops the node and is reported.
func TestPortsUplinkKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.cfg.Ports.Driver = config.DriverSlirp
	cmd, output := r.start("")
	cgroup, _ := r.ready()
	assert.NilError(t, syscall.Kill(uplinkPID(t, cmd, "slirp4netns"), syscall.SIGKILL))
	assert.Equal(t, r.ends(cmd, output), errdefs.ExitComponent)
	assert.Assert(t, cmp.Contains(output.String(), "the network process (slirp4netns"))
	assert.Assert(t, cmp.Contains(output.String(), "killed"))
	r.gone(cgroup)
}

// networkOf returns the addresses and routes in the network namespace of a process, without the state of the links.
func networkOf(t *testing.T, pid int) string {
	t.Helper()
	var all strings.Builder
	for _, what := range []string{"address", "route"} {
		out, err := exec.Command("nsenter", "-t", strconv.Itoa(pid), "-U", "-n", "--preserve-credentials", "ip", "-4", "-o", what).CombinedOutput()
		assert.NilError(t, err, "%s", out)
		all.Write(out)
	}
	return strings.ReplaceAll(all.String(), " linkdown", "")
}

// TestUplinkRetries checks that a network process that does not start is started again later, and that each failure is published.
func TestUplinkRetries(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "slirp4netns") // does not exist before the second failure
	var faults []string
	u := &uplink{programs: []string{"slirp4netns"}, log: logrus.New(), args: []string{program}}
	u.report = func(f layout.NetworkFault) {
		if faults = append(faults, f.Message); len(faults) == 3 {
			testutil.Script(t, program, "echo ready >&3; exec tail -f /dev/null")
		}
	}
	u.restart(t.Context(), deadchild.Child{PID: 7, Status: "signal: killed"})
	assert.NilError(t, u.close())
	const ended = "the network process (slirp4netns, pid 7) ended: signal: killed"
	assert.Equal(t, faults[0], ended)
	for _, f := range faults[1:3] {
		assert.Assert(t, cmp.Contains(f, ended+", and does not start: "))
		assert.Assert(t, cmp.Contains(f, "no such file"))
	}
	assert.DeepEqual(t, faults[3:], []string{""})
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
