package parent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/rootless-containers/rootlesskit/v3/pkg/common"
	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// subreaper wraps a network driver whose program daemonizes. This process is the child subreaper (PR_SET_CHILD_SUBREAPER of prctl(2))
// while the driver starts the program, so that the daemon becomes its child. The end of the daemon is then detected as for the other
// drivers (see unreaped). The cleanup function kills the daemon, because pasta of 2023 does not end with its namespace.
type subreaper struct {
	network.ParentDriver
	// programs are the possible names of the process.
	programs []string
	log      logrus.FieldLogger
}

// ConfigureNetwork implements network.ParentDriver.
func (d *subreaper) ConfigureNetwork(childPID int, stateDir, netns string) (*messages.ParentInitNetworkDriverCompleted, func() error, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, nil, fmt.Errorf("become the child subreaper for %s: %w", d.programs[0], err)
	}
	before := childrenNamed(d.programs)
	msg, cleanup, err := d.ParentDriver.ConfigureNetwork(childPID, stateDir, netns)
	if perr := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); perr != nil {
		d.log.WithError(perr).Warn("reset the child subreaper attribute")
	}
	var found []int
	for pid := range childrenNamed(d.programs) {
		if !before[pid] {
			found = append(found, pid)
		}
	}
	if err == nil && len(found) == 0 {
		d.log.WithField("program", d.programs[0]).Warn("network process not found; its end will not be detected")
	}
	return msg, common.Seq([]func() error{cleanup, func() error { return endChildren(found) }}), err
}

// endChildren kills and reaps the children pids.
func endChildren(pids []int) error {
	var faults []error
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			faults = append(faults, fmt.Errorf("kill network process %d: %w", pid, err))
			continue
		}
		for {
			_, err := unix.Wait4(pid, nil, 0, nil)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	return errors.Join(faults...)
}

// childrenNamed returns the pids of the children of this process whose program has one of the names, optionally with a suffix: pasta
// is a link to passt, which executes passt.avx2 on processors that support it.
func childrenNamed(programs []string) map[int]bool {
	found := map[int]bool{}
	for s := range proc.Host.Stats() {
		if base, _, _ := strings.Cut(s.Name, "."); s.Parent == os.Getpid() && slices.Contains(programs, base) {
			found[s.PID] = true
		}
	}
	return found
}
