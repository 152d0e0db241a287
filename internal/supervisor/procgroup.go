package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// groupPoll is the interval at which a killed process group is polled. The kernel reports only the end of direct children.
const groupPoll = 5 * time.Millisecond

// killRemaining kills what the ended, unreaped main process left: its process group and everything in its cgroup, which
// includes processes that created their own session. It waits until they have ended and returns an error if they do not.
func (p *process) killRemaining() error {
	deadline := time.Now().Add(p.u.g.o.KillWait)
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL) // The ended leader is still in the group.
	err := awaitGroup(p.pid(), deadline)
	if p.spec.CgroupDir != "" {
		err = errors.Join(err, emptyCgroup(p.spec.CgroupDir, deadline))
	}
	return err
}

// awaitGroup waits until no living process is in the process group.
func awaitGroup(pgid int, deadline time.Time) error {
	for {
		left := groupMembers("/proc", pgid)
		switch {
		case len(left) == 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("process group %d: processes remain after SIGKILL: %v", pgid, left)
		}
		time.Sleep(groupPoll)
	}
}

// groupMembers returns the living processes of the process group, read from the proc file system at root. It returns none
// if root cannot be read.
func groupMembers(root string, pgid int) []int {
	dir, err := os.Open(root)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var members []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, name, "stat"))
		if err != nil {
			continue // Ended meanwhile.
		}
		if group, alive := parseStat(data); alive && group == pgid {
			members = append(members, pid)
		}
	}
	return members
}

// parseStat returns the process group from the content of /proc/PID/stat (proc_pid_stat(5)), and whether the process is
// alive; zombies are not. It returns 0 for malformed input.
func parseStat(data []byte) (pgid int, alive bool) {
	// The command name in parentheses may itself contain parentheses, so search for the last one.
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return 0, false
	}
	fields := bytes.Fields(data[end+1:])
	if len(fields) < 3 || len(fields[0]) != 1 {
		return 0, false
	}
	pgid, err := strconv.Atoi(string(fields[2]))
	if err != nil || pgid <= 0 {
		return 0, false
	}
	switch fields[0][0] {
	case 'Z', 'X', 'x':
		return pgid, false
	}
	return pgid, true
}
