package parent

import (
	"context"
	"encoding/json"
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

	"github.com/rootlessnode/rootlessnode/internal/deadchild"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// The guard is a second process of the same executable that cleans up after the parent has ended for any reason. No other process
// could clean up after a killed parent, because the processes inside the node's namespaces cannot remove their own cgroup. The guard
// runs outside of the node's cgroup and waits for the end of file on a pipe from the parent. Then it kills the processes that remain
// in the node's cgroup, removes the cgroup, the runtime dir and the lock file, and exits. It shares the parent's locks, so that the
// node does not appear as stopped before the cleanup is complete.

// Descriptors that the guard inherits. The last one is missing if the parent has no lock in the data dir.
const (
	guardPipeFD     = 3
	guardLockFD     = 4
	guardDataLockFD = 5
)

// guardNote has the facts that the guard needs to clean up, because the runtime dir may be removed while the node is running. The parent writes notes as JSON
// to the guard's pipe. Fields that are set replace those of earlier notes.
type guardNote struct {
	// DataDir is the node's data dir, and Cgroup the path of its subtree.
	DataDir string `json:"dataDir,omitempty"`
	Cgroup  string `json:"cgroup,omitempty"`
	// Ended marks an orderly end of the parent. Without it, the parent was killed.
	Ended bool `json:"ended,omitempty"`
}

// cleanUpLimit is the time limit for killing the processes in a node's cgroup and removing the cgroup.
const cleanUpLimit = 20 * time.Second

// guardRestartPause is the minimum time between two starts of the guard.
const guardRestartPause = time.Second

type guard struct {
	rt           layout.Runtime
	locks        []*os.File
	log          logrus.FieldLogger
	pipeR, pipeW *os.File
	stop         chan struct{}
	done         sync.WaitGroup

	mu    sync.Mutex
	known guardNote
}

// startGuard starts the guard, and restarts it when it ends, until close. dataLock may be without a file.
func startGuard(rt layout.Runtime, d layout.Data, lock, dataLock nodeLock, log logrus.FieldLogger) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("create the guard's pipe: %w", err)
	}
	g := &guard{rt: rt, locks: []*os.File{lock.File}, log: log, pipeR: r, pipeW: w, stop: make(chan struct{})}
	if dataLock.File != nil {
		g.locks = append(g.locks, dataLock.File)
	}
	cmd := g.command()
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the guard: %w", err), r.Close(), w.Close())
	}
	g.note(func(n *guardNote) { n.DataDir = d.Dir })
	g.done.Add(1)
	go g.keep(cmd)
	return g, nil
}

func (g *guard) command() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"rootlessnode: guard of " + g.rt.Dir}
	cmd.Env = append(layout.RoleEnv(layout.RoleGuard, g.rt), "GOMAXPROCS=1", "GOGC=25") // mostly idle: memory matters more than speed
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = append([]*os.File{g.pipeR}, g.locks...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signals from the parent's terminal
	return cmd
}

// note changes what the guard knows.
func (g *guard) note(change func(*guardNote)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(&g.known)
	// The pipe is empty unless there is no guard, and a later one gets all notes.
	if err := json.NewEncoder(g.pipeW).Encode(g.known); err != nil {
		g.log.WithError(err).Warn("write to the guard")
	}
}

// keep restarts the guard when it ends, until stop. A guard is running when keep returns.
func (g *guard) keep(cmd *exec.Cmd) {
	defer g.done.Done()
	for {
		began := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		var err error
		select {
		case err = <-ended:
		case <-g.stop:
			if cmd.Process == nil { // it could not be started
				return
			}
			if _, zombie := deadchild.ByPID(cmd.Process.Pid); !zombie && proc.Exists(cmd.Process.Pid) {
				return // the guard continues and detects the end of this process
			}
			err = <-ended
		}
		g.log.WithError(err).Warn("the guard ended unexpectedly, restarting it")
		select {
		case <-g.stop:
		case <-time.After(guardRestartPause - time.Since(began)):
		}
		cmd = g.command()
		if err := cmd.Start(); err != nil { // Wait returns an error too
			g.log.WithError(err).Error("start the guard; without it, the node's cgroup and runtime dir remain until the next start")
		}
		g.note(func(*guardNote) {})
	}
}

// close stops restarting the guard, which cleans up when this process ends.
func (g *guard) close() {
	g.note(func(n *guardNote) { n.Ended = true })
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
	var known guardNote
	pipe := json.NewDecoder(os.NewFile(guardPipeFD, "parent"))
	for {
		err := pipe.Decode(&known)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.WithError(err).Warn("guard: read from the parent")
			break
		}
	}
	if !known.Ended && known.DataDir != "" {
		recordKilled(layout.NewData(known.DataDir), log)
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpLimit)
	defer cancel()
	// The kernel releases the locks at the end of this process.
	return cleanUp(ctx, rt, known.Cgroup)
}

// recordKilled records for `status` that the parent was killed.
func recordKilled(d layout.Data, log logrus.FieldLogger) {
	err := errdefs.Component("the parent process was killed")
	if err := layout.WriteState(d.LastExit(), errdefs.ReportOf(err)); err != nil {
		log.WithError(err).Warn("guard: record the end of the parent")
	}
}

// cleanUp kills the processes in the node's cgroup and removes the cgroup, then the runtime dir, then the lock file. The lock file is
// last, so that the node is locked during the cleanup. If cgroup is "", the path that the parent has recorded is used.
func cleanUp(ctx context.Context, rt layout.Runtime, cgroup string) error {
	errs := []error{removeCgroup(ctx, rt, cgroup), os.RemoveAll(rt.Dir)}
	if err := os.Remove(rt.Lock()); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	_ = os.Remove(filepath.Dir(rt.Lock())) // fails if the account has other nodes
	return errors.Join(errs...)
}

// removeCgroup kills the processes in the cgroup, and removes it. If cgroup is "", the path that the parent has recorded is used.
func removeCgroup(ctx context.Context, rt layout.Runtime, cgroup string) error {
	if cgroup == "" {
		b, err := os.ReadFile(rt.CgroupFile())
		if err != nil {
			return nil // the parent has not claimed a cgroup
		}
		cgroup = strings.TrimSpace(string(b))
	}
	return cgroupv2.RemoveTree(ctx, cgroup)
}
