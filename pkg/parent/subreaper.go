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
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
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

// parseStat returns the program's name and the parent's pid, which are fields 2 and 4 of /proc/PID/stat (proc_pid_stat(5)). The name
// is in parentheses and may contain any character. For malformed input, it returns "" and 0.
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
