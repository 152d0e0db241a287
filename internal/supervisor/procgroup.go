package supervisor

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

// groupPoll is the interval at which a killed process group is polled. The kernel reports only the end of direct children.
const groupPoll = 5 * time.Millisecond

// killRemaining kills what the ended, unreaped main process left: its process group and everything in its cgroup, which
// includes processes that created their own session. It waits until they have ended and returns an error if they do not.
func (p *process) killRemaining() error {
	ctx, cancel := context.WithTimeout(context.Background(), p.u.g.o.KillWait)
	defer cancel()
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL) // The ended leader is still in the group.
	err := awaitGroup(ctx, p.pid())
	if p.spec.CgroupDir != "" {
		err = errors.Join(err, cgroupv2.Empty(ctx, p.spec.CgroupDir))
	}
	return err
}

// awaitGroup waits until no living process is in the process group.
func awaitGroup(ctx context.Context, pgid int) error {
	for {
		var left []int
		for s := range proc.Host.Stats() {
			if s.Group == pgid && s.Alive() {
				left = append(left, s.PID)
			}
		}
		switch {
		case len(left) == 0:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("process group %d: processes remain after SIGKILL: %v", pgid, left)
		}
		time.Sleep(groupPoll)
	}
}
