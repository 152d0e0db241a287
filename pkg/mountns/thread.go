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

// thread is an operating system thread in another mount namespace. It runs functions one after the other and ends with stop.
// No other goroutine runs on it. A program whose children have a parent death signal (prctl(2)) must start them from a
// locked thread, because the kernel sends that signal at the end of the thread, and any thread may end here.
type thread struct {
	work chan func()
	done chan struct{}
}

// startThread starts a thread that enters another mount namespace. The thread first unshares its working directory and root
// from the other threads, because the kernel requires that (setns(2)).
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

// onOwnThread runs fn on a locked thread that ends with the goroutine, because it is never unlocked. It does not use the main
// thread of the process, because that must not end and /proc/self refers to it.
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

// joinThread starts a thread in the namespace ns.
func joinThread(ns *os.File) (*thread, error) {
	t, err := startThread(func() error { return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS) })
	if err != nil {
		return nil, privilege(fmt.Errorf("enter the mount namespace: %w", err))
	}
	return t, nil
}

// in runs fn in the namespace ns.
func in(ns *os.File, fn func() error) error {
	t, err := joinThread(ns)
	if err != nil {
		return err
	}
	defer t.stop()
	return t.do(fn)
}

// threadSelf is the calling thread in /proc. /proc/self is the main thread of the process.
const threadSelf = "/proc/thread-self"

// anyCPU lets the kernel choose the processor.
const anyCPU = -1

// allowedCPUs returns the processors that this process may run on.
func allowedCPUs() []int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil // the machine has more processors than fit into the set
	}
	var all []int
	for cpu := 0; len(all) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all
}

// newNamespace creates a mount namespace with the given propagation, on the given processor, and returns its open file.
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
		return nil, privilege(fmt.Errorf("create mount namespace: %w", err))
	}
	defer t.stop()
	if err := t.do(func() error { return propagate(p) }); err != nil {
		return nil, errors.Join(fmt.Errorf("create mount namespace: set propagation %s: %w", p, err), ns.Close())
	}
	return ns, nil
}

// propagate sets the propagation of all mounts of the calling thread's namespace, which is a copy of the host's and initially
// its peer.
func propagate(p Propagation) error {
	var steps []uintptr
	switch p {
	case Shared: // the mounts stay peers
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

// hostIsShared returns an error if the host's root is private.
func hostIsShared() error {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("read the host's mounts: %w", err)
	}
	if root := hostinfo.MountOver(mounts, "/"); root != nil && peersOf(root.Optional).shared != 0 {
		return nil
	}
	return errdefs.Preflight("the host's root is private: mounts do not propagate in either direction").
		Hint("mount --make-rshared /   # first")
}
