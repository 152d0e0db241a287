package parent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// The guard is a second process of the same executable that outlives the parent, however that ends. Nobody else could
// tidy up after a parent that got SIGKILL: what is inside the node's namespaces cannot remove the cgroup it sits in, and
// the parent is gone. It sits outside the node's cgroup, waits for the end of file on a pipe from the parent, kills what
// is left in the node's cgroup, removes the cgroup, the runtime dir and the lock file, and ends. It shares the parent's
// lock, so nobody can take a node for stopped while something of it is left.

// Descriptors of the guard.
const (
	guardPipeFD = 3
	guardLockFD = 4
)

// cleanUpLimit is how long killing and removing a node's cgroup may take.
const cleanUpLimit = 20 * time.Second

// guardRestartPause keeps a guard that cannot live from being started in a loop.
const guardRestartPause = time.Second

type guard struct {
	pipeR, pipeW *os.File
	stop         chan struct{}
	done         sync.WaitGroup
}

// startGuard starts the guard and keeps one alive until close.
func startGuard(rt layout.Runtime, lock *os.File, log logrus.FieldLogger) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the guard's pipe: %w", err)
	}
	g := &guard{pipeR: r, pipeW: w, stop: make(chan struct{})}
	cmd := guardCommand(rt, r, lock)
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the guard: %w", err), r.Close(), w.Close())
	}
	g.done.Add(1)
	go g.keep(rt, lock, cmd, log)
	return g, nil
}

func guardCommand(rt layout.Runtime, pipe, lock *os.File) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"rootlessnode: guard of " + rt.Dir}
	cmd.Env = []string{
		layout.EnvRole + "=" + layout.RoleGuard, layout.EnvGuard + "=" + rt.Dir,
		"GOMAXPROCS=1", "GOGC=25", // it sleeps for the node's whole life: small matters, fast does not
	}
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{pipe, lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a Ctrl-C in the parent's terminal is not for it
	return cmd
}

// keep waits for the guard and starts it again should somebody have ended it.
func (g *guard) keep(rt layout.Runtime, lock *os.File, cmd *exec.Cmd, log logrus.FieldLogger) {
	defer g.done.Done()
	for {
		ended := make(chan error, 1)
		go func(c *exec.Cmd) { ended <- c.Wait() }(cmd)
		select {
		case <-g.stop:
			return // the process goes on and sees our end
		case err := <-ended:
			log.WithError(err).Warn("the guard ended, starting another")
		}
		select {
		case <-g.stop:
			return
		case <-time.After(guardRestartPause):
		}
		cmd = guardCommand(rt, g.pipeR, lock)
		if err := cmd.Start(); err != nil {
			log.WithError(err).Error("no guard: a killed parent will leave its cgroup and runtime dir behind")
			return
		}
	}
}

// close lets the guard go on alone; it acts when this process ends. A byte tells it that this end is an orderly one.
func (g *guard) close() {
	_, _ = g.pipeW.Write([]byte{'\n'}) // without it the run is recorded as killed: no worse than that
	close(g.stop)
	g.done.Wait()
	_ = g.pipeR.Close() // nothing to tell: the guard has its own descriptor
}

// RunGuard is the guard role. It returns when everything of the node is gone. Called by node.Dispatch alone.
// Runs in: parent.
func RunGuard(log logrus.FieldLogger) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	rt := layout.Runtime{Dir: os.Getenv(layout.EnvGuard)}
	if rt.Dir == "" {
		return errors.New("guard: started without a runtime dir")
	}
	pipe := os.NewFile(guardPipeFD, "parent")
	lock := os.NewFile(guardLockFD, "lock")
	last, err := io.ReadAll(pipe)
	if err != nil {
		log.WithError(err).Warn("guard: read from the parent")
	}
	if len(last) == 0 {
		recordKilled(rt, log)
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpLimit)
	defer cancel()
	return errors.Join(cleanUp(ctx, rt), lock.Close())
}

// recordKilled leaves the reason for `status`, since the parent had no chance to.
func recordKilled(rt layout.Runtime, log logrus.FieldLogger) {
	var cfg config.NodeConfig
	if err := layout.ReadJSON(rt.Config(), &cfg); err != nil {
		return // killed before it had begun
	}
	err := errdefs.Class(errdefs.ErrComponent, errors.New("the parent process was killed"))
	if err := layout.WriteJSON(layout.NewData(cfg.DataDir).LastExit(), errdefs.ReportOf(err)); err != nil {
		log.WithError(err).Warn("guard: record the end of the parent")
	}
}

// cleanUp removes the cgroup with whatever lives in it, the runtime dir and the lock file, in this order: the lock file
// goes last, while the lock is still held.
func cleanUp(ctx context.Context, rt layout.Runtime) error {
	var errs []error
	if b, err := os.ReadFile(rt.CgroupFile()); err == nil {
		errs = append(errs, cgroupv2.RemoveTree(ctx, string(trimNewline(b))))
	}
	errs = append(errs, os.RemoveAll(rt.Dir))
	if err := os.Remove(rt.Lock()); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	_ = os.Remove(filepath.Dir(rt.Lock())) // the last node of the account: other nodes keep it from being empty
	return errors.Join(errs...)
}
