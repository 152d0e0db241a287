package child

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/component/kubelet"
	"github.com/rootlessnode/rootlessnode/pkg/copyup"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
	"github.com/rootlessnode/rootlessnode/pkg/status"
	"github.com/rootlessnode/rootlessnode/pkg/supervisor"
)

// mountsEvery is how often the guarantees are tried again; a component that was started anew is looked at then too.
const mountsEvery = time.Minute

// mountsTried is what a try of the guarantees prints.
type mountsTried struct {
	Guarantees mountns.Guarantees `json:"guarantees"`
	Reasons    []string           `json:"reasons"`
}

// RunMounts is the mounts role: it tries the guarantees for mounts in the node's own mount namespace and prints what it
// found. It is a process of its own, because such a try ends threads, and with them the node role's children.
func RunMounts() error {
	var t mountsTried
	var err error
	if err := os.MkdirAll(layout.InsideRun, 0o755); err != nil {
		return err
	}
	t.Guarantees, t.Reasons, err = mountns.ProbeGuarantees(layout.InsideKubelet, layout.InsideRun)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(t)
}

// tryMounts starts the mounts role.
func tryMounts(ctx context.Context) (t mountsTried, err error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", layout.RoleMounts)
	cmd.Env = append(publicEnv(os.Environ()), layout.EnvRole+"="+layout.RoleMounts)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &t)
	}
	if err != nil {
		return t, fmt.Errorf("try how mounts propagate: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return t, nil
}

// entriesUnit keeps the entries of the copied-up directories what they are on the host.
func (n *nodeRole) entriesUnit() supervisor.Unit {
	return supervisor.Unit{Name: unitEntries, Backoff: n.backoff(), Task: func(ctx context.Context, ready func()) error {
		return copyup.FollowHost(ctx, fileSystem(n.cfg, n.rt), ready)
	}}
}

// mountsUnit tries the guarantees at start and again and again.
func (n *nodeRole) mountsUnit() supervisor.Unit {
	return supervisor.Unit{Name: unitMounts, Task: n.followMounts, Backoff: n.backoff()}
}

func (n *nodeRole) followMounts(ctx context.Context, ready func()) error {
	tick := time.NewTicker(mountsEvery)
	defer tick.Stop()
	for {
		t, err := tryMounts(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			n.tellMounts(t)
		} else {
			n.hub.SetCondition(status.Condition{Type: status.ConditionSharedMounts, Reason: "NotTried", Message: err.Error()})
		}
		ready()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// tellMounts puts what was found into the status. A broken (2) degrades the node; (1) that this host cannot give is a
// warning.
func (n *nodeRole) tellMounts(t mountsTried) {
	strays := n.strays()
	g := t.Guarantees
	m := &status.Mounts{HostToNode: g.HostToInside, Shared: g.Inside && len(strays) == 0, NodeToHost: g.InsideToHost}
	if !m.HostToNode {
		why := "the host's root is private"
		m.Hint = hostRemedy
		if n.cfg.Mounts.Propagation == "rprivate" {
			why, m.Hint = "mounts.propagation is rprivate", "# set mounts.propagation: rslave, and start the node anew"
		}
		m.Reasons = append(m.Reasons, "1: the root inside receives nothing from the host's: "+why)
	}
	m.Reasons = slices.Concat(m.Reasons, t.Reasons, strays)
	now := n.hub.Snapshot()
	if now.Mounts == nil && !m.HostToNode {
		n.log.Warnf("mounts that the host makes from now on do not reach the node: %s", strings.Join(m.Reasons, "; "))
	}
	if old := now.Mounts; old == nil || old.Text() != m.Text() || !slices.Equal(old.Reasons, m.Reasons) {
		n.hub.Update(func(s *status.Status) { s.Mounts = m })
	}
	c := status.Condition{Type: status.ConditionSharedMounts, OK: m.Shared}
	if !m.Shared {
		c.Reason, c.Message = "NotShared", strings.Join(m.Reasons, "; ")
	}
	if old := now.Condition(c.Type); old == nil || old.OK != c.OK || old.Message != c.Message {
		n.hub.SetCondition(c)
	}
}

// hostRemedy is what root of the host does about a private root.
const hostRemedy = "mount --make-rshared /    # as root of the host; then start the node anew"

// strays are the kubelet and the runtime, where they are in another mount namespace than the node role: they would not
// see one another's mounts.
func (n *nodeRole) strays() []string {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return []string{fmt.Sprintf("2: %v", err)}
	}
	var found []string
	for _, u := range n.group.Status() {
		if u.PID == 0 || u.Name != kubelet.Name && u.Name != n.runtimeUnit() {
			continue
		}
		its, err := os.Readlink(filepath.Join("/proc", fmt.Sprint(u.PID), "ns/mnt"))
		if err == nil && its != own { // one that has just ended is looked at next time
			found = append(found, fmt.Sprintf("2: %s (pid %d) is in another mount namespace than the node", u.Name, u.PID))
		}
	}
	return found
}
