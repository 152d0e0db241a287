package parent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/deadchild"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// unreapedAfter: a child process of ours that has been dead for so long without anybody waiting for it is one that
// RootlessKit does not watch.
const unreapedAfter = 500 * time.Millisecond

// returnLimit is how long RootlessKit may take to notice by itself that its child is gone, once we know.
const returnLimit = time.Second

// watch stands beside RootlessKit's blocking call and covers what it does not do: it has no context; it never looks at
// the process that carries the network once that runs; and it waits for ever for a child that died before their
// handshake was over, because it keeps the writing end of its own pipe open (RootlessKit 3.3.0, pkg/parent/parent.go).
type watch struct {
	o       Options
	hook    *networkHook
	signals chan os.Signal
	chld    chan os.Signal
	// forced: the node did not stop as it was asked to, and was killed.
	forced bool
}

func newWatch(o Options, hook *networkHook) *watch {
	w := &watch{o: o, hook: hook, signals: make(chan os.Signal, 4), chld: make(chan os.Signal, 1)}
	signal.Notify(w.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	signal.Notify(w.chld, syscall.SIGCHLD)
	return w
}

func (w *watch) close() {
	signal.Stop(w.signals)
	signal.Stop(w.chld)
}

// wait blocks until RootlessKit's parent has returned on done, or until it is sure that it never will.
func (w *watch) wait(ctx context.Context, done <-chan error) error {
	var (
		cause    error            // why the node ends, when we know better than RootlessKit
		killAt   <-chan time.Time // the end of the grace
		stopping bool
		dead     = newUnreaped()
		lifeline = endOf(w.o.Lifeline)
		gone     <-chan time.Time
		ended    = ctx.Done()
	)
	defer dead.close()
	stop := func(why string, signalled bool) {
		if stopping {
			return
		}
		stopping = true
		w.o.Log.WithField("reason", why).Info("stopping the node")
		killAt = time.After(w.o.Config.Timeouts.Stop.D())
		w.terminate(signalled)
	}
	for {
		select {
		case err := <-done:
			return w.result(err, cause, stopping)
		case <-ended:
			ended = nil
			stop("asked by its starter", false)
		case <-lifeline:
			lifeline = nil
			stop("its starter is gone", false)
		case s := <-w.signals:
			if stopping {
				w.o.Log.WithField("signal", s).Warn("second signal, killing the node")
				w.forced = true
				w.kill()
				break
			}
			stop("signal "+s.String(), true) // RootlessKit passes the signal itself on
		case <-w.chld:
			dead.look()
		case d := <-dead.found:
			if d.PID == w.hook.childPID() || w.hook.childPID() == 0 {
				if !stopping {
					cause = errdefs.Class(errdefs.ErrComponent, fmt.Errorf("the child ended during set-up: %s", d.Status))
				}
				gone = time.After(returnLimit)
				break
			}
			if cause == nil && !stopping { // a terminal's signal ends the uplink too
				cause = w.uplinkLost(d)
				stop(cause.Error(), false)
			}
		case <-killAt:
			w.o.Log.WithField("limit", w.o.Config.Timeouts.Stop.D()).Warn("the node did not stop in time, killing it")
			w.forced = true
			w.kill()
		case <-gone:
			return cause
		}
	}
}

// uplinkLost describes the end of the process that carries the network.
func (w *watch) uplinkLost(d deadchild.Child) error {
	err := fmt.Errorf("the network's process (%s, pid %d) ended: %s", w.o.Config.Network.Driver, d.PID, d.Status)
	w.o.Log.WithError(err).Error("uplink lost")
	return errdefs.WithHintf(errdefs.Class(errdefs.ErrComponent, err),
		"the node cannot reach anything without it and was stopped; start it again: rootlessnode --name %s up", w.o.Config.Name)
}

// result turns RootlessKit's answer into ours.
func (w *watch) result(err, cause error, stopping bool) error {
	switch {
	case cause != nil:
		return cause
	case err == nil:
		return nil
	case stopping && !w.forced:
		// However RootlessKit's processes ended: the stop may have come before they were ready for one. What the node role
		// itself has to complain of it has left in the data dir.
		return nil
	case isPermission(err) && w.hook.childPID() == 0:
		return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("make the namespaces: %w", err)),
			"rootlessnode check")
	default:
		return errdefs.Class(errdefs.ErrComponent, fmt.Errorf("run the node: %w", err))
	}
}

func isPermission(err error) bool {
	return errors.Is(err, os.ErrPermission) || errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "newuidmap") ||
		strings.Contains(err.Error(), "newgidmap")
}

// terminate asks the node role to stop. A child that has not come to our node role has nobody to ask, and is killed.
func (w *watch) terminate(alreadySignalled bool) {
	pid := w.hook.childPID()
	if pid == 0 {
		return
	}
	if _, err := os.Stat(w.o.Runtime.NodeSocket()); err != nil {
		w.kill()
		return
	}
	if alreadySignalled {
		return
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		w.o.Log.WithError(err).Warn("ask the node to stop")
	}
}

// kill ends the child; as the init of its pid namespace it takes everything inside with it.
func (w *watch) kill() {
	pid := w.hook.childPID()
	if pid == 0 {
		return
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		w.o.Log.WithError(err).Warn("kill the node")
	}
}

// endOf is closed at the end of file of f; nil for a nil f.
func endOf(f *os.File) <-chan struct{} {
	if f == nil {
		return nil
	}
	c := make(chan struct{})
	go func() {
		defer close(c)
		_, _ = io.Copy(io.Discard, f) // any end of it, errors too, means that nobody is there
	}()
	return c
}
