package parent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/parentutils"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/deadchild"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/login"
	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// Delays between attempts to start a network process that does not start or does not keep running.
const (
	uplinkDelay    = 200 * time.Millisecond
	uplinkDelayMax = 10 * time.Second
	// uplinkStart is the time limit for a start.
	uplinkStart = 10 * time.Second
)

// uplink wraps a network driver that runs a program, and starts the program again after it has ended. The tap device of the node is
// persistent (TUNSETPERSIST of linux/if_tun.h), so that it keeps its addresses and routes meanwhile.
type uplink struct {
	network.ParentDriver
	// programs are the possible names of the process.
	programs []string
	// daemonizes is set if the program starts the process and then ends. This process is the child subreaper
	// (PR_SET_CHILD_SUBREAPER of prctl(2)) meanwhile, so that the daemon becomes its child.
	daemonizes bool
	log        logrus.FieldLogger
	// restarts is set if the program can be started again. It is not if the program forwards ports too, because it would not
	// know them.
	restarts bool
	// report publishes the current fault; an empty message means that there is none.
	report func(layout.NetworkFault)

	out io.Writer // gets the output of the program

	mu      sync.Mutex
	args    []string     // the command line
	pids    []int        // the processes that run now
	cleanup func() error // ends them
	closed  bool
}

// ConfigureNetwork implements network.ParentDriver. RootlessKit calls it once, on a thread that lives as long as the process. The
// parent-death signal of the network process is bound to the thread that starts it (prctl(2)).
func (u *uplink) ConfigureNetwork(childPID int, stateDir, netns string) (*messages.ParentInitNetworkDriverCompleted, func() error, error) {
	if u.daemonizes {
		// The program would create a device that ends with it.
		if err := parentutils.PrepareTap(childPID, netns, tapName); err != nil {
			return nil, nil, err
		}
	}
	var msg *messages.ParentInitNetworkDriverCompleted
	err := u.start(func() (end func() error, err error) {
		msg, end, err = u.ParentDriver.ConfigureNetwork(childPID, stateDir, netns)
		return end, err
	})
	return msg, u.close, err
}

// start calls start, which starts the program and returns a function that ends it, and records the process.
func (u *uplink) start(start func() (end func() error, err error)) (err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return errors.New("the node is stopping")
	}
	if u.daemonizes {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become the child subreaper for %s: %w", u.programs[0], err)
		}
		defer func() { err = errors.Join(err, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)) }()
	}
	before := childrenNamed(u.programs)
	u.cleanup, err = start()
	u.pids = slices.DeleteFunc(childrenNamed(u.programs), func(pid int) bool { return slices.Contains(before, pid) })
	if err != nil {
		return err
	}
	if len(u.pids) == 0 {
		u.log.WithField("program", u.programs[0]).Warn("network process not found; its end will not be detected")
		return nil
	}
	u.args, err = proc.Host.Args(u.pids[0])
	return err
}

// again starts the program with the arguments of the first start. RootlessKit's drivers cannot, because they create the device.
func (u *uplink) again() (end func() error, err error) {
	cmd := exec.Command(u.args[0], u.args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if u.daemonizes {
		out, err := cmd.CombinedOutput()
		return nil, proc.Failure(err, out)
	}
	cmd.Stdout, cmd.Stderr = u.out, u.out
	ready, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = ready.Close() }()
	cmd.ExtraFiles = []*os.File{write} // descriptor 3, as RootlessKit's driver passes it
	err = cmd.Start()
	_ = write.Close() // the process has its own
	if err != nil {
		return nil, err
	}
	end = func() error {
		_ = cmd.Process.Kill() // may have ended already
		_ = cmd.Wait()         // the status is that of the signal
		return nil
	}
	if err := ready.SetReadDeadline(time.Now().Add(uplinkStart)); err != nil {
		return end, err
	}
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		return end, fmt.Errorf("%s did not report that it is ready: %w", u.programs[0], err)
	}
	return end, nil
}

// owns reports whether pid is the network process.
func (u *uplink) owns(pid int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Contains(u.pids, pid)
}

// close ends the network process and reaps it.
func (u *uplink) close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	return u.end()
}

// end ends the network process, if there is one, and reaps it.
func (u *uplink) end() error {
	var faults []error
	if u.cleanup != nil {
		faults = append(faults, u.cleanup())
	}
	if u.daemonizes { // the driver does not end a daemon
		faults = append(faults, endChildren(u.pids))
	}
	u.cleanup, u.pids = nil, nil
	return errors.Join(faults...)
}

// keep starts the program again after each value on lost, until stopping ends. It returns when lost is closed, because its thread must
// live as long as the program.
func (u *uplink) keep(stopping context.Context, lost <-chan deadchild.Child) {
	runtime.LockOSThread() // never unlocked: see ConfigureNetwork
	login.Reset()          // the faults were reported at the first start
	for d := range lost {
		if stopping.Err() == nil && u.owns(d.PID) {
			u.restart(stopping, d)
		}
	}
}

// restart starts the program until it runs.
func (u *uplink) restart(ctx context.Context, d deadchild.Child) {
	log := u.log.WithField("program", u.programs[0])
	fault := layout.NetworkFault{Message: fmt.Sprintf("the network process (%s, pid %d) ended: %s", u.programs[0], d.PID, d.Status)}
	log.WithFields(logrus.Fields{"pid": d.PID, "status": d.Status}).Error("the network process ended; starting it again")
	u.report(fault)
	for delay := uplinkDelay; ; delay = min(2*delay, uplinkDelayMax) {
		u.mu.Lock()
		err := u.end()
		u.mu.Unlock()
		if err == nil {
			err = u.start(u.again)
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		log.WithError(err).Warn("start the network process again")
		u.report(layout.NetworkFault{Message: fmt.Sprintf("%s, and does not start: %v", fault.Message, err)})
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
	}
	log.Info("the network process runs again")
	u.report(layout.NetworkFault{})
}

// endChildren kills and reaps the children pids.
func endChildren(pids []int) error {
	var faults []error
	for _, pid := range pids {
		child, err := proc.Open(pid) // not reused, because no other code reaps it
		if err == nil {
			err = child.Signal(unix.SIGKILL)
			child.Close()
		}
		if err != nil && !proc.Ended(err) {
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
func childrenNamed(programs []string) []int {
	var found []int
	for s := range proc.Host.Stats() {
		if base, _, _ := strings.Cut(s.Name, "."); s.Parent == os.Getpid() && slices.Contains(programs, base) {
			found = append(found, s.PID)
		}
	}
	return found
}
