package mountns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// thread is an operating system thread that has left the process's mount namespace. It runs one function after another
// and ends with stop; no other goroutine ever gets it. A program whose children have a parent death signal (prctl(2)) starts
// them from a locked thread: that signal is for the end of the thread, and which one ends here is not foreseen.
type thread struct {
	work chan func()
	done chan struct{}
}

// startThread starts a thread and has it enter another mount namespace. A thread shares its working directory and root
// with the others, and the kernel lets none of those change its mount namespace: they are unshared first (setns(2)).
func startThread(enter func() error) (*thread, error) {
	t := &thread{work: make(chan func()), done: make(chan struct{})}
	entered := make(chan error)
	go func() {
		defer close(t.done)
		onOwnThread(func() {
			err := unix.Unshare(unix.CLONE_FS)
			if err == nil {
				err = enter()
			}
			if entered <- err; err != nil {
				return
			}
			for fn := range t.work {
				fn()
			}
		})
	}()
	if err := <-entered; err != nil {
		<-t.done
		return nil, err
	}
	return t, nil
}

// onOwnThread runs fn with its thread locked and has the thread end with the goroutine, by never unlocking it. The
// process's first thread is no such thread: it does not end, and /proc/self speaks of it.
func onOwnThread(fn func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		fn()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(fn)
	}()
	<-done
	runtime.UnlockOSThread()
}

// do runs fn in the thread's namespace and waits for it.
func (t *thread) do(fn func() error) error {
	result := make(chan error)
	t.work <- func() { result <- fn() }
	return <-result
}

func (t *thread) stop() {
	close(t.work)
	<-t.done
}

// joinThread starts a thread in the namespace that ns holds.
func joinThread(ns *os.File) (*thread, error) {
	t, err := startThread(func() error { return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS) })
	if err != nil {
		return nil, privilege(fmt.Errorf("enter the mount namespace: %w", err))
	}
	return t, nil
}

// in runs fn in the namespace that ns holds.
func in(ns *os.File, fn func() error) error {
	t, err := joinThread(ns)
	if err != nil {
		return err
	}
	defer t.stop()
	return t.do(fn)
}

// threadSelf is the calling thread in /proc; /proc/self is the process's first thread.
const threadSelf = "/proc/thread-self"

// anyCPU leaves it to the kernel where something is done.
const anyCPU = -1

// allowedCPUs are the processors that this process may run on.
func allowedCPUs() []int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil // a machine of more processors than the set has room for
	}
	var all []int
	for cpu := 0; len(all) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all
}

// newNamespace makes a mount namespace of the given propagation, on the given processor, and returns the open file that
// holds it.
func newNamespace(p Propagation, cpu int) (*os.File, error) {
	var ns *os.File
	t, err := startThread(func() error {
		var err error
		if cpu != anyCPU {
			var set unix.CPUSet
			set.Set(cpu)
			err = unix.SchedSetaffinity(0, &set)
		}
		if err == nil {
			err = unix.Unshare(unix.CLONE_NEWNS)
		}
		if err == nil {
			ns, err = os.Open(threadSelf + "/ns/mnt")
		}
		return err
	})
	if err != nil {
		return nil, privilege(fmt.Errorf("make a mount namespace: %w", err))
	}
	defer t.stop()
	if err := t.do(func() error { return propagate(p) }); err != nil {
		return nil, errors.Join(fmt.Errorf("make a mount namespace: propagation %s: %w", p, err), ns.Close())
	}
	return ns, nil
}

// propagate sets the propagation of all mounts of the calling thread's namespace, which is a copy of the host's and at
// first its peer.
func propagate(p Propagation) error {
	var steps []uintptr
	switch p {
	case Shared: // peers stay what they are
	case Private:
		steps = []uintptr{unix.MS_PRIVATE, unix.MS_SHARED}
	case Slave:
		steps = []uintptr{unix.MS_SLAVE, unix.MS_SHARED}
	}
	for _, flag := range steps {
		if err := unix.Mount("none", "/", "", unix.MS_REC|flag, ""); err != nil {
			return err
		}
	}
	return nil
}

// hostIsShared fails when the host's root does not pass mounts on.
func hostIsShared() error {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("read the host's mounts: %w", err)
	}
	if root := hostinfo.MountOver(mounts, "/"); root != nil && peersOf(root.Optional).shared != 0 {
		return nil
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, errors.New("the host's root is private: no mount goes either way")),
		"mount --make-rshared /   # before")
}
