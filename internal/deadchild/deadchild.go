// Package deadchild looks at dead children of this process without reaping them, and reaps those that nobody waits for.
// Whoever waits for a child does so within a moment of its end.
package deadchild

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Child is a process that is dead and not reaped yet.
type Child struct {
	PID int
	// Status is in the words of os.ProcessState.
	Status string
}

// Any returns one that is dead, if any is: the same one until that is reaped.
func Any() (Child, bool) { return find(unix.P_ALL, 0) }

// ByPID returns the child pid if it is one, and dead.
func ByPID(pid int) (Child, bool) { return find(unix.P_PID, pid) }

// siginfo is the head of siginfo_t as waitid(2) fills it in for SIGCHLD on 64-bit Linux.
type siginfo struct {
	signo, errno, code, _ int32
	pid, uid, status      int32
	_                     [100]byte
}

func find(idType, id int) (Child, bool) {
	var si siginfo
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, uintptr(idType), uintptr(id), uintptr(unsafe.Pointer(&si)),
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
		if errors.Is(errno, unix.EINTR) {
			continue
		}
		if errno != 0 || si.pid == 0 {
			return Child{}, false
		}
		break
	}
	const cldExited = 1 // CLD_EXITED of sigaction(2)
	if si.code == cldExited {
		return Child{int(si.pid), fmt.Sprintf("exit status %d", si.status)}, true
	}
	return Child{int(si.pid), "signal: " + unix.Signal(si.status).String()}, true
}
