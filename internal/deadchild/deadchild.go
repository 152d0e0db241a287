// Package deadchild finds zombie children of this process without reaping them, and reaps orphans that no code waits for. It assumes that
// code that waits for a child reaps it shortly after its end.
package deadchild

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// Child is a child process that has ended and is not reaped yet.
type Child struct {
	PID int
	// Status is how it ended, as in proc.ExitText.
	Status string
}

// Any returns a zombie child if there is one. It returns the same one until that is reaped.
func Any() (Child, bool) { return find(unix.P_ALL, 0) }

// ByPID returns the child with the given pid if it is a zombie.
func ByPID(pid int) (Child, bool) { return find(unix.P_PID, pid) }

// siginfo is the start of siginfo_t in the layout of waitid(2) for SIGCHLD on 64-bit Linux.
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
	status := syscall.WaitStatus(si.status) // as wait(2) encodes a signal
	const cldExited = 1                     // CLD_EXITED of sigaction(2)
	if si.code == cldExited {
		status <<= 8
	}
	return Child{int(si.pid), proc.ExitText(status)}, true
}
