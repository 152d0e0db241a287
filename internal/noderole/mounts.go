package noderole

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// mountsInterval is how often mount propagation is tested again, which also covers components that have restarted
// since.
const mountsInterval = time.Minute

// mountsResult is the result of a test of mount propagation.
type mountsResult struct {
	Guarantees mountns.Guarantees `json:"guarantees"`
	Reasons    []string           `json:"reasons"`
}

// mountsOutput is the output of the mounts role.
type mountsOutput struct {
	mountsResult
	// Failure is the reason for which the test was impossible.
	Failure string `json:"failure,omitempty"`
}

// RunMounts executes the mounts role: it tests mount propagation in the node's mount namespace and prints the result.
// It is a separate process because the test ends threads, and with them the node role's children.
func RunMounts() error {
	var t mountsOutput
	err := os.MkdirAll(layout.InsideRun, 0o755)
	if err == nil {
		t.Guarantees, t.Reasons, err = mountns.ProbeGuarantees(layout.InsideKubelet, layout.InsideRun)
	}
	if err != nil {
		t.Failure = err.Error()
	}
	return json.NewEncoder(os.Stdout).Encode(t)
}

// probeMounts runs the mounts role in a child process.
func probeMounts(ctx context.Context) (mountsResult, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", layout.RoleMounts)
	cmd.Env = append(os.Environ(), layout.RoleEnv(layout.RoleMounts, layout.Runtime{})...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return mountsResult{}, fmt.Errorf("test mount propagation: %w", proc.Failure(err, stderr.Bytes()))
	}
	return parseMounts(out)
}

// parseMounts returns the result in the output of the mounts role.
func parseMounts(out []byte) (mountsResult, error) {
	var t mountsOutput
	err := json.Unmarshal(out, &t)
	if err == nil && t.Failure != "" {
		err = errors.New(t.Failure)
	}
	if err != nil {
		return mountsResult{}, fmt.Errorf("test mount propagation: %w", err)
	}
	return t.mountsResult, nil
}

// mountWatch tests mount propagation at start and periodically.
type mountWatch struct {
	propagation string // mounts.propagation
	log         logrus.FieldLogger
	hub         *status.Hub
	// processes returns the processes that must run in the node role's mount namespace.
	processes func() []supervisor.UnitStatus
}

// Run is ready after the first test.
func (w *mountWatch) Run(ctx context.Context, ready func()) error {
	tick := time.NewTicker(mountsInterval)
	defer tick.Stop()
	for {
		t, err := probeMounts(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			w.report(t)
		} else {
			w.hub.SetCondition(status.Condition{Type: status.ConditionSharedMounts, Reason: "NotTried", Message: err.Error()})
		}
		ready()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// report writes the result to the status. Missing propagation inside the node (2) degrades the node; missing
// propagation from the host (1) is a warning.
func (w *mountWatch) report(t mountsResult) {
	wrong := wrongMountNamespace(w.processes())
	g := t.Guarantees
	m := &status.Mounts{HostToNode: g.HostToInside, Shared: g.Inside && len(wrong) == 0, NodeToHost: g.InsideToHost}
	if !m.HostToNode {
		why := "the host's root is private"
		m.Hint = propagationHint
		if w.propagation == "rprivate" {
			why, m.Hint = "mounts.propagation is rprivate", "# set mounts.propagation: rslave, then restart the node"
		}
		m.Reasons = append(m.Reasons, "1: mounts of the host do not reach the node: "+why)
	}
	m.Reasons = slices.Concat(m.Reasons, t.Reasons, wrong)
	now := w.hub.Snapshot()
	if now.Mounts == nil && !m.HostToNode {
		w.log.Warnf("new mounts of the host do not reach the node: %s", strings.Join(m.Reasons, "; "))
	}
	if old := now.Mounts; old == nil || old.Text() != m.Text() || !slices.Equal(old.Reasons, m.Reasons) {
		w.hub.Update(func(s *status.Status) { s.Mounts = m })
	}
	c := status.Condition{Type: status.ConditionSharedMounts, OK: m.Shared}
	if !m.Shared {
		c.Reason, c.Message = "NotShared", strings.Join(m.Reasons, "; ")
	}
	w.hub.SetCondition(c)
}

// propagationHint is the command that root runs on the host to fix a private root mount.
const propagationHint = "mount --make-rshared /    # as root on the host; then restart the node"

// wrongMountNamespace returns a message for each process that runs in a different mount namespace than the node role,
// because they would not see each other's mounts.
func wrongMountNamespace(processes []supervisor.UnitStatus) []string {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return []string{fmt.Sprintf("2: %v", err)}
	}
	var found []string
	for _, u := range processes {
		other, err := os.Readlink(proc.Host.File(u.PID, "ns/mnt"))
		if err == nil && other != own { // a process that has just ended is checked next time
			found = append(found, fmt.Sprintf("2: %s (pid %d) is in a different mount namespace than the node", u.Name, u.PID))
		}
	}
	return found
}
