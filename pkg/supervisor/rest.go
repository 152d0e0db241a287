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

// restTick is the pause between two looks at a killed process group. The kernel tells of the end of a child only.
const restTick = 5 * time.Millisecond

// killRest kills what the dead, unreaped main process left: its process group, and all of its cgroup, where also those
// are that took a session of their own. It returns when they are gone, with an error when they are not.
func (p *process) killRest() error {
	deadline := time.Now().Add(p.u.g.o.KillWait)
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL) // Reaches at least the dead leader.
	err := awaitGroup(p.pid(), deadline)
	if p.spec.CgroupDir != "" {
		err = errors.Join(err, emptyCgroup(p.spec.CgroupDir, deadline))
	}
	return err
}

// awaitGroup blocks until nobody alive is in the process group.
func awaitGroup(pgid int, deadline time.Time) error {
	for {
		left := groupMembers("/proc", pgid)
		switch {
		case len(left) == 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("process group %d: still there after SIGKILL: %v", pgid, left)
		}
		time.Sleep(restTick)
	}
}

// groupMembers returns who is alive in the process group, as seen in the proc file system at root; none if it cannot
// be read.
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
			continue // Gone meanwhile.
		}
		if group, alive := parseStat(data); alive && group == pgid {
			members = append(members, pid)
		}
	}
	return members
}

// parseStat takes the process group from the text of /proc/PID/stat (proc_pid_stat(5)), and whether the process lives:
// zombies wait for their parent and do nothing more. Text that cannot be understood is nobody.
func parseStat(data []byte) (pgid int, alive bool) {
	// The name in brackets may hold anything, brackets too; what follows the last one is plain.
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
