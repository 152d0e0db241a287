package parent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/deadchild"
	"github.com/rootlessnode/rootlessnode/internal/filewatch"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// unreapedAfter is the time after which a zombie child is regarded as one that RootlessKit does not wait for.
const unreapedAfter = 500 * time.Millisecond

// returnLimit is how long RootlessKit may take to return after its child has ended.
const returnLimit = time.Second

// stopAgain is the interval at which the signal to stop is repeated.
const stopAgain = 2 * time.Second

// watch runs in parallel to RootlessKit's blocking call and handles the cases that RootlessKit does not: RootlessKit does not support a
// context; it does not watch the process of the network driver; and it waits forever for a child that ended during the handshake,
// because it keeps the write end of its own pipe open (RootlessKit 3.3.0, pkg/parent/parent.go).
type watch struct {
	o       Options
	hook    *networkHook
	uplink  *uplink // nil if the network driver runs no process
	signals <-chan os.Signal
	chld    chan os.Signal
	// socket reports when the node role listens.
	socket *filewatch.Watch[fs.FileInfo]
	// listening is set once the node role has listened, also if its socket was removed later.
	listening bool
	// forced is set if the node did not stop in time and was killed.
	forced bool
}

func newWatch(o Options, hook *networkHook, up *uplink, signals <-chan os.Signal) (*watch, error) {
	socket, err := filewatch.New(o.Runtime.NodeSocket(), os.Lstat)
	if err != nil {
		return nil, err
	}
	w := &watch{o: o, hook: hook, uplink: up, signals: signals, chld: make(chan os.Signal, 1), socket: socket}
	signal.Notify(w.chld, syscall.SIGCHLD)
	return w, nil
}

func (w *watch) close() {
	signal.Stop(w.chld)
	w.socket.Close()
}

// wait blocks until RootlessKit's parent has returned on done, or is known to be blocked forever.
func (w *watch) wait(ctx context.Context, done <-chan error) error {
	var (
		cause    error            // the reason for the end, if it is more precise than RootlessKit's error
		killAt   <-chan time.Time // the end of the stop timeout
		stopping bool
		dead     = newUnreaped()
		lifeline = endOf(w.o.Lifeline)
		gone     <-chan time.Time
		again    <-chan time.Time // the next signal to stop, because the child may not have forwarded the last one
		ended    = ctx.Done()
		lost     = make(chan deadchild.Child, 1)
	)
	defer dead.close()
	running, cancel := context.WithCancel(ctx)
	var keeper sync.WaitGroup
	defer keeper.Wait()
	defer close(lost)
	defer cancel()
	if w.uplink != nil {
		keeper.Go(func() { w.uplink.keep(running, lost) })
	}
	stop := func(why string, signalled bool) {
		if stopping {
			return
		}
		stopping = true
		cancel()
		w.o.Log.WithField("reason", why).Info("stopping the node")
		killAt = time.After(w.o.Config.Timeouts.Stop.D())
		if w.hook.refuse() == 0 {
			// RootlessKit's call cannot be canceled. It fails as soon as the child exists, or continues until this process ends.
			gone = time.After(returnLimit)
			return
		}
		w.terminate(signalled)
		again = time.After(stopAgain)
	}
	for {
		select {
		case err := <-done:
			return w.result(err, cause, stopping)
		case <-ended:
			ended = nil
			stop(context.Cause(ctx).Error(), false)
		case <-lifeline:
			lifeline = nil
			stop("the host program ended", false)
		case s := <-w.signals:
			if stopping && s == syscall.SIGINT {
				w.o.Log.Warn("second SIGINT; killing the node")
				w.forced = true
				w.kill()
				break
			}
			stop("signal "+s.String(), true) // RootlessKit forwards the signal itself
		case <-w.socket.Changed():
			w.listening = true
		case <-w.chld:
			dead.check()
		case d := <-dead.found:
			if d.PID == w.hook.childPID() || w.hook.childPID() == 0 {
				if gone == nil { // the zombie is found again until RootlessKit reaps it
					gone = time.After(returnLimit)
				}
				if !stopping {
					cause = childEnded(d.Status)
				}
				break
			}
			switch {
			case cause != nil, stopping: // a signal from the terminal ends the uplink too
			case w.uplink != nil && w.uplink.restarts && w.uplink.owns(d.PID):
				select {
				case lost <- d:
				default: // is being restarted
				}
			default:
				cause = w.uplinkLost(d)
				stop(cause.Error(), false)
			}
		case <-again:
			w.terminate(false)
			again = time.After(stopAgain)
		case <-killAt:
			w.o.Log.WithField("limit", w.o.Config.Timeouts.Stop.D()).Warn("the node did not stop in time; killing it")
			w.forced = true
			w.kill()
		case <-gone:
			return cause
		}
	}
}

// uplinkLost logs and returns the error for the end of the network driver's process.
func (w *watch) uplinkLost(d deadchild.Child) error {
	err := fmt.Errorf("the network process (%s, pid %d) ended: %s", w.o.Config.Network.Driver, d.PID, d.Status)
	w.o.Log.WithError(err).Error("uplink lost")
	return errdefs.Component("%w", err).Hint("# the node was stopped because it has no network without this process; start it again:").Do(errdefs.Start)
}

// result returns the error of the node for err, the result of RootlessKit's parent.
func (w *watch) result(err, cause error, stopping bool) error {
	switch {
	case cause != nil:
		return cause
	case err == nil:
		return nil
	case stopping && !w.forced:
		// The error does not matter, because the stop may have come before RootlessKit's processes were ready for one. The node role
		// records its own errors in the data dir.
		return nil
	case w.forced:
		return errdefs.Component("the node did not stop in time and was killed")
	case isPermission(err) && w.hook.childPID() == 0:
		return errdefs.Preflight("create the namespaces: %w", err).Do(errdefs.CheckHost)
	}
	if text, ended := proc.ErrorText(err); ended {
		return childEnded(text)
	}
	return errdefs.Component("run the node: %w", err)
}

// childEnded returns the error for the end of the child, unless the roles inside have reported the reason.
func childEnded(how string) error {
	return errdefs.Component("the node's process 1 ended unexpectedly: %s", how)
}

func isPermission(err error) bool {
	return errors.Is(err, os.ErrPermission) || errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "newuidmap") ||
		strings.Contains(err.Error(), "newgidmap")
}

// terminate signals the child to stop. It kills the child if the node role is not running yet.
func (w *watch) terminate(alreadySignalled bool) {
	if _, err := w.socket.Read(); err == nil {
		w.listening = true
	}
	if !w.listening {
		w.kill()
		return
	}
	if !alreadySignalled {
		w.signal(unix.SIGTERM)
	}
	// Resumes a child or a node role that was stopped with SIGSTOP. RootlessKit's child forwards the signal.
	w.signal(unix.SIGCONT)
}

// kill kills the child, which is the init process of its pid namespace. The kernel then kills all processes inside.
func (w *watch) kill() { w.signal(unix.SIGKILL) }

func (w *watch) signal(sig unix.Signal) {
	if err := w.hook.signal(sig); err != nil {
		w.o.Log.WithError(err).Warnf("send %s to the node", unix.SignalName(sig))
	}
}

// endOf returns a channel that is closed at end of file of f, or nil if f is nil.
func endOf(f *os.File) <-chan struct{} {
	if f == nil {
		return nil
	}
	c := make(chan struct{})
	go func() {
		defer close(c)
		_, _ = io.Copy(io.Discard, f) // an error means the same as end of file
	}()
	return c
}
