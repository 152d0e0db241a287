// Package login sets the attributes that a process inherits from its login session to the values of a node, so that components and pods do
// not depend on how the node was started: by a shell with a umask, under nohup, nice or ulimit, from a service, or by an embedding program.
//
// Attributes that a parent also sets in other places: the descriptors (internal/descriptors) and the session. The affinity to CPUs is kept,
// because it limits the node like a cgroup does.
//
// Runs in: parent.
package login

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// umask is the usual one of system services. With another one, the directories of containers could not be read by their users.
const umask = 0o022

// Limits of soft limits. Some programs close every descriptor up to the limit, and an unlimited stack changes the layout of the memory.
const (
	noFileMax = 1 << 20
	stackMax  = 8 << 20
)

// Reset sets the attributes of the calling process and thread, which must be locked (runtime.LockOSThread) and never be unlocked. The
// processes that the thread starts inherit them. It returns a description of each attribute that this account may not set.
func Reset() []string {
	unix.Umask(umask)
	var faults []string
	for _, reset := range []struct {
		what string
		set  func() error
	}{
		{"working directory", func() error { return os.Chdir("/") }}, // the current one may be deleted, or prevent an unmount
		{"resource limits", resetLimits},
		{"nice value", resetNice},
		{"scheduling policy", resetPolicy},
		{"I/O priority", resetIOPriority},
		{"blocked signals", func() error { return unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil) }},
		{"OOM score", resetOOMScore},
		{"execution domain", resetPersonality},
	} {
		if err := reset.set(); err != nil {
			faults = append(faults, fmt.Sprintf("the node keeps the %s of the login: %v", reset.what, err))
		}
	}
	return faults
}

// resetLimits raises each soft limit to the hard limit, or to the maximum above.
func resetLimits() error {
	var errs []error
	for resource, most := range map[int]uint64{
		unix.RLIMIT_AS: unix.RLIM_INFINITY, unix.RLIMIT_CORE: unix.RLIM_INFINITY, unix.RLIMIT_CPU: unix.RLIM_INFINITY,
		unix.RLIMIT_DATA: unix.RLIM_INFINITY, unix.RLIMIT_FSIZE: unix.RLIM_INFINITY, unix.RLIMIT_LOCKS: unix.RLIM_INFINITY,
		unix.RLIMIT_MEMLOCK: unix.RLIM_INFINITY, unix.RLIMIT_MSGQUEUE: unix.RLIM_INFINITY, unix.RLIMIT_NOFILE: noFileMax,
		unix.RLIMIT_NPROC: unix.RLIM_INFINITY, unix.RLIMIT_RSS: unix.RLIM_INFINITY, unix.RLIMIT_SIGPENDING: unix.RLIM_INFINITY,
		unix.RLIMIT_STACK: stackMax,
	} {
		var l syscall.Rlimit
		// With this function, children do not get the soft limit of open files from before (syscall.Setrlimit).
		err := syscall.Getrlimit(resource, &l)
		if err == nil {
			l.Cur = min(l.Max, most)
			err = syscall.Setrlimit(resource, &l)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("resource %d: %w", resource, err))
		}
	}
	return errors.Join(errs...)
}

// resetNice sets the nice value to 0. Only the limit RLIMIT_NICE permits an ordinary user to lower it.
func resetNice() error {
	// The system call returns 20 minus the nice value (getpriority(2)).
	value, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil || value >= 20 {
		return err
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 0); err != nil {
		return fmt.Errorf("nice %d: %w", 20-value, err)
	}
	return nil
}

func resetPolicy() error {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil || attr.Policy == unix.SCHED_NORMAL {
		return err
	}
	return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: attr.Nice}, 0)
}

// resetIOPriority sets no priority, so that the kernel derives it from the nice value (ioprio_set(2)).
func resetIOPriority() error {
	const whoProcess = 1 // IOPRIO_WHO_PROCESS
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, 0); errno != 0 && errno != unix.ENOSYS {
		return errno
	}
	return nil
}

const oomScoreFile = "/proc/self/oom_score_adj"

// resetOOMScore sets the lowest score that the account may set, which is at most that of the service that started the login.
func resetOOMScore() error {
	b, err := os.ReadFile(oomScoreFile)
	if err != nil {
		return err
	}
	current, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return err
	}
	const step = 100 // the scores of systemd for user managers and their services are 100 and 200
	for score := 0; score < current; score += step {
		if os.WriteFile(oomScoreFile, []byte(strconv.Itoa(score)), 0) == nil {
			break
		}
	}
	return nil
}

// resetPersonality sets the execution domain PER_LINUX, which setarch(8) changes.
func resetPersonality() error {
	const query = 0xffffffff
	current, _, errno := unix.Syscall(unix.SYS_PERSONALITY, query, 0, 0)
	if errno != 0 || current == 0 {
		return nil // refused by a seccomp filter, or nothing to do
	}
	if _, _, errno := unix.Syscall(unix.SYS_PERSONALITY, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
