package parent

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// death is a child process that is dead and that nobody waits for.
type death struct {
	pid    int
	status string
}

// unreaped finds dead children of this process that stay unreaped. Everything that somebody waits for disappears
// within a moment; RootlessKit's network program and, during set-up, its child do not.
type unreaped struct {
	found chan death
	ask   chan struct{}
	quit  chan struct{}
	ended chan struct{}
}

func (w *watch) unreaped() *unreaped {
	u := &unreaped{found: make(chan death, 1), ask: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{})}
	go u.run()
	u.look() // a child may have died before SIGCHLD was listened to
	return u
}

// look asks for a check; it never blocks.
func (u *unreaped) look() {
	select {
	case u.ask <- struct{}{}:
	default:
	}
}

func (u *unreaped) close() {
	close(u.quit)
	<-u.ended
}

func (u *unreaped) run() {
	defer close(u.ended)
	for {
		select {
		case <-u.quit:
			return
		case <-u.ask:
		}
		first, ok := deadChild(unix.P_ALL, 0)
		if !ok {
			continue
		}
		select {
		case <-u.quit:
			return
		case <-time.After(unreapedAfter):
		}
		if d, still := deadChild(unix.P_PID, first.pid); still {
			select {
			case u.found <- d:
			case <-u.quit:
			}
			return
		}
		u.look() // another one may have hidden behind it
	}
}

// siginfo is the head of siginfo_t as waitid(2) fills it in for SIGCHLD on 64-bit Linux.
type siginfo struct {
	signo, errno, code, _ int32
	pid, uid, status      int32
	_                     [100]byte
}

// deadChild returns a dead child without reaping it.
func deadChild(idType, id int) (death, bool) {
	var si siginfo
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, uintptr(idType), uintptr(id), uintptr(unsafe.Pointer(&si)),
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
		if errors.Is(errno, unix.EINTR) {
			continue
		}
		if errno != 0 || si.pid == 0 {
			return death{}, false
		}
		break
	}
	const cldExited = 1 // CLD_EXITED of sigaction(2)
	if si.code == cldExited {
		return death{int(si.pid), fmt.Sprintf("exit status %d", si.status)}, true
	}
	return death{int(si.pid), "signal: " + unix.Signal(si.status).String()}, true
}
