package proc

import (
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
)

// refuse makes the kernel return errno for the system calls on this thread (seccomp(2)), as the filters of old container engines do. The
// thread must not be used for anything else.
func refuse(t *testing.T, errno unix.Errno, calls ...uint32) {
	t.Helper()
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the number of the system call
	for _, nr := range calls {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	assert.NilError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	assert.NilError(t, unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0))
}

// TestHandle checks that a handle signals its process and only that, with pidfds and without them.
func TestHandle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		errno unix.Errno
		calls []uint32
	}{
		"pidfd":              {},
		"pidfd_open refused": {unix.EPERM, []uint32{unix.SYS_PIDFD_OPEN}},
		"all calls refused":  {unix.EPERM, []uint32{unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL}},
		"not in the kernel":  {unix.ENOSYS, []uint32{unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sleeper := exec.Command("sleep", "1000")
			assert.NilError(t, sleeper.Start())
			pid := sleeper.Process.Pid
			done := make(chan struct{})
			go func() {
				defer close(done)
				runtime.LockOSThread() // never unlocked: the thread with the filter ends with this goroutine
				if len(c.calls) > 0 {
					refuse(t, c.errno, c.calls...)
				}
				h, err := Open(pid)
				if !assert.Check(t, err) {
					return
				}
				defer h.Close()
				assert.Check(t, h.Signal(0))
				assert.Check(t, h.Signal(unix.SIGTERM))
				AwaitExit(pid)
				assert.Check(t, h.Signal(unix.SIGTERM), "a zombie")
				err = sleeper.Wait()
				assert.Check(t, err != nil && err.Error() == "signal: terminated", "%v", err)
				assert.Check(t, h.Signal(unix.SIGTERM), "no process")
				_, err = Open(pid)
				assert.Check(t, Ended(err), "%v", err)
			}()
			<-done
			_ = sleeper.Process.Kill()
			_ = sleeper.Wait()
		})
	}
}
