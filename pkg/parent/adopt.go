package parent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rootless-containers/rootlesskit/v3/pkg/common"
	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// adopting wraps a network driver whose program puts itself into the background. This process takes such an orphan as
// its own child for as long as the driver starts it (PR_SET_CHILD_SUBREAPER of prctl(2)), so that its end is found like
// that of any other uplink (unreaped), and ends it when the node has ended: a pasta of 2023 outlives its namespace.
type adopting struct {
	network.ParentDriver
	// programs are the names that the process may have.
	programs []string
	log      logrus.FieldLogger
}

// ConfigureNetwork is RootlessKit's call.
func (d *adopting) ConfigureNetwork(childPID int, stateDir, netns string) (*messages.ParentInitNetworkDriverCompleted, func() error, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, nil, fmt.Errorf("become the parent of what %s leaves in the background: %w", d.programs[0], err)
	}
	before := childrenNamed(d.programs)
	msg, cleanup, err := d.ParentDriver.ConfigureNetwork(childPID, stateDir, netns)
	if perr := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); perr != nil {
		d.log.WithError(perr).Warn("stop being the parent of orphans")
	}
	var found []int
	for pid := range childrenNamed(d.programs) {
		if !before[pid] {
			found = append(found, pid)
		}
	}
	if err == nil && len(found) == 0 {
		d.log.WithField("program", d.programs[0]).Warn("the network's process is not found: its end will not be noticed")
	}
	return msg, common.Seq([]func() error{cleanup, func() error { return endChildren(found) }}), err
}

// endChildren kills and reaps.
func endChildren(pids []int) error {
	var faults []error
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			faults = append(faults, fmt.Errorf("end process %d of the network: %w", pid, err))
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

// childrenNamed are the children of this process whose program has one of the names, or one with a suffix: pasta is a
// link to passt, and that executes passt.avx2 where the processor allows.
func childrenNamed(programs []string) map[int]bool {
	found := map[int]bool{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // gone
		}
		name, ppid := parseStat(string(b))
		if base, _, _ := strings.Cut(name, "."); !slices.Contains(programs, base) || ppid != os.Getpid() {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found[pid] = true
		}
	}
	return found
}

// parseStat reads the program's name and the parent's pid from /proc/PID/stat (proc_pid_stat(5)): fields 2 and 4. The
// name is in parentheses and may hold any character.
func parseStat(stat string) (name string, ppid int) {
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return "", 0
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 2 {
		return "", 0
	}
	ppid, err := strconv.Atoi(fields[1])
	if err != nil {
		return "", 0
	}
	return stat[open+1 : end], ppid
}
