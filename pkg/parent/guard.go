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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// The guard is a second process of the same executable that cleans up after the parent has ended for any reason. No other process
// could clean up after a killed parent, because the processes inside the node's namespaces cannot remove their own cgroup. The guard
// runs outside of the node's cgroup and waits for the end of file on a pipe from the parent. Then it kills the processes that remain
// in the node's cgroup, removes the cgroup, the runtime dir and the lock file, and exits. It shares the parent's lock, so that the
// node does not appear as stopped before the cleanup is complete.

// Descriptors that the guard inherits.
const (
	guardPipeFD = 3
	guardLockFD = 4
)

// cleanUpLimit is the time limit for killing the processes in a node's cgroup and removing the cgroup.
const cleanUpLimit = 20 * time.Second

// guardRestartPause is the pause before the guard is restarted after it has ended unexpectedly.
const guardRestartPause = time.Second

type guard struct {
	pipeR, pipeW *os.File
	stop         chan struct{}
	done         sync.WaitGroup
}

// startGuard starts the guard, and restarts it when it ends, until close.
func startGuard(rt layout.Runtime, lock *os.File, log logrus.FieldLogger) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("create the guard's pipe: %w", err)
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
	cmd.Env = append(layout.RoleEnv(layout.RoleGuard, rt), "GOMAXPROCS=1", "GOGC=25") // mostly idle: memory matters more than speed
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{pipe, lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signals from the parent's terminal
	return cmd
}

// keep restarts the guard when it ends, until stop.
func (g *guard) keep(rt layout.Runtime, lock *os.File, cmd *exec.Cmd, log logrus.FieldLogger) {
	defer g.done.Done()
	for {
		ended := make(chan error, 1)
		go func(c *exec.Cmd) { ended <- c.Wait() }(cmd)
		select {
		case <-g.stop:
			return // the guard continues and detects the end of this process
		case err := <-ended:
			log.WithError(err).Warn("the guard ended unexpectedly, restarting it")
		}
		select {
		case <-g.stop:
			return
		case <-time.After(guardRestartPause):
		}
		cmd = guardCommand(rt, g.pipeR, lock)
		if err := cmd.Start(); err != nil {
			log.WithError(err).Error("start the guard; if the parent is killed, the node's cgroup and runtime dir will remain")
			return
		}
	}
}

// close stops restarting the guard, which cleans up when this process ends. It writes a byte to the pipe, which marks an orderly end.
func (g *guard) close() {
	_, _ = g.pipeW.Write([]byte{'\n'}) // without the byte, the guard records that the parent was killed
	close(g.stop)
	g.done.Wait()
	_ = g.pipeR.Close() // the guard has its own descriptor
}

// RunGuard runs the guard role and returns when the cleanup after the node is complete. Only node.Dispatch calls it.
//
// Runs in: parent.
func RunGuard(log logrus.FieldLogger, rt layout.Runtime) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	if rt.Dir == "" {
		return errors.New("guard: runtime dir is not set")
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

// recordKilled records for `status` that the parent was killed.
func recordKilled(rt layout.Runtime, log logrus.FieldLogger) {
	var cfg config.NodeConfig
	if err := layout.ReadJSON(rt.Config(), &cfg); err != nil {
		return // killed before it wrote the config
	}
	err := errdefs.Component("the parent process was killed")
	if err := layout.WriteJSON(layout.NewData(cfg.DataDir).LastExit(), errdefs.ReportOf(err)); err != nil {
		log.WithError(err).Warn("guard: record the end of the parent")
	}
}

// cleanUp kills the processes in the node's cgroup and removes the cgroup, then the runtime dir, then the lock file. The lock file is
// last, so that the node is locked during the cleanup.
func cleanUp(ctx context.Context, rt layout.Runtime) error {
	errs := []error{removeCgroup(ctx, rt), os.RemoveAll(rt.Dir)}
	if err := os.Remove(rt.Lock()); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	_ = os.Remove(filepath.Dir(rt.Lock())) // fails if the account has other nodes
	return errors.Join(errs...)
}

// removeCgroup kills the processes in the cgroup that the parent has recorded, and removes the cgroup.
func removeCgroup(ctx context.Context, rt layout.Runtime) error {
	b, err := os.ReadFile(rt.CgroupFile())
	if err != nil {
		return nil // the parent has not claimed a cgroup
	}
	return cgroupv2.RemoveTree(ctx, strings.TrimSpace(string(b)))
}
