package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/descriptors"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/parent"
)

// helper is a process of this executable in one of the host-side roles.
type helper struct {
	cmd *exec.Cmd
	// lifeline is the write end of the pipe whose closing stops the parent; nil if the parent is detached.
	lifeline *os.File
	// ended is closed when the process has ended. err is its error and removed its result afterwards.
	ended   chan struct{}
	err     error
	removed *datadir.Result
}

// Start checks the host, starts the node and returns as soon as its parent process is running. Use WaitReady to wait until the node
// is usable. ctx limits only the start; the node continues to run when ctx ends.
//
// Errors: of class errdefs.ErrPreflight with all unmet host requirements, or if the cluster cannot be joined;
// errdefs.ErrAlreadyRunning if the node is running.
func (n *Node) Start(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.helper != nil {
		select {
		case <-n.helper.ended:
		default:
			return errdefs.AlreadyRunning("start node %q: already started by this program", n.Config().Name)
		}
	}
	if err := runPreflight(ctx, n); err != nil {
		return err
	}
	if err := claim(ctx, n); err != nil {
		return err
	}
	if err := joinCluster(ctx, n); err != nil {
		return err
	}
	h, err := startHelper(n, layout.RoleParent)
	if err != nil {
		return err
	}
	n.helper = h
	return nil
}

// RunForeground checks the host and runs the node's parent in the calling process. It blocks until the node has ended. It handles
// the signals of the process and changes its environment, umask, limits and working directory, so use it in command-line programs and
// systemd units only.
//
// If the environment has NOTIFY_SOCKET and WATCHDOG_USEC (sd_notify(3)), RunForeground reports to the service manager when the node
// is ready or degraded, its status, and that it responds. It uses the listening sockets from the service manager (sd_listen_fds(3)) for the
// node's ports with the same addresses.
//
// Errors: as for Start; the error of the node if it ended by itself.
func (n *Node) RunForeground(ctx context.Context) error {
	exe, err := parent.Executable(n.Config().Network.Driver, n.Config().ComponentsDir)
	if err != nil {
		return err
	}
	if exe != selfExe {
		env := os.Environ()
		if n.joinToken != "" {
			env = append(env, layout.EnvTakenToken+"="+n.joinToken) // its source may be readable only once
		}
		return syscall.Exec(exe, os.Args, env)
	}
	n.listeners = takeListeners(n.log)
	defer n.listeners.close()
	if err := descriptors.CloseInherited(); err != nil { // keeps the listeners, which are close-on-exec now
		return err
	}
	manager := takeNotifier(n.log)
	if manager != nil {
		awaitNetwork(ctx, n)
	}
	if err := runPreflight(ctx, n); err != nil {
		return err
	}
	if err := claim(ctx, n); err != nil {
		return err
	}
	if err := joinCluster(ctx, n); err != nil {
		return err
	}
	if manager != nil {
		following, stop := context.WithCancel(ctx)
		var followers sync.WaitGroup
		followers.Go(func() { manager.follow(following, n) })
		defer followers.Wait()
		defer stop()
	}
	return parent.Run(ctx, parent.Options{
		Config: n.Config(), Runtime: n.rt, Versions: versionsOf(n.Config()), Log: n.log, TTL: n.ttl, Listeners: n.listeners,
	})
}

// selfExe is the path of this program. It stays valid when the program's file is replaced.
const selfExe = "/proc/self/exe"

// startHelper starts a helper process in the given role and passes its input. Output of the parent role goes to the node's log.
func startHelper(n *Node, role string) (*helper, error) {
	attached := !n.detach && role == layout.RoleParent
	input, err := json.Marshal(helperInput{Config: n.Config(), RuntimeDir: n.rt.Dir, DataCertain: dataCertain(n), TTL: n.ttl, Lifeline: attached})
	if err != nil {
		return nil, fmt.Errorf("encode the config: %w", err)
	}
	var opened []*os.File
	defer func() { closeFiles(opened) }()
	pipe := func() (r, w *os.File) {
		if err != nil {
			return nil, nil
		}
		if r, w, err = os.Pipe(); err == nil {
			opened = append(opened, r, w)
		}
		return r, w
	}
	configR, configW := pipe()
	reportR, reportW := pipe()
	lifelineR, lifelineW := pipe()
	if err != nil {
		return nil, fmt.Errorf("create the pipes of the helper process: %w", err)
	}
	log, err := openLog(n, role)
	if err != nil {
		return nil, err
	}
	defer log.Close()

	exe := selfExe
	if role == layout.RoleParent {
		if exe, err = parent.Executable(n.Config().Network.Driver, n.Config().ComponentsDir); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(exe)
	cmd.Args = []string{"rootlessnode", "--name", n.Config().Name, role}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{configR, reportW, lifelineR} // inputFD, reportFD, lifelineFD
	cmd.Env = append(os.Environ(), layout.RoleEnv(role, n.rt)...)
	// A new session, so that the node does not get the signals of the host program's terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	h := &helper{cmd: cmd, ended: make(chan struct{})}
	if attached {
		if h.lifeline, err = dup(lifelineW); err != nil {
			return nil, err
		}
	}
	report, err := dup(reportR)
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the %s: %w", role, err), report.Close())
	}
	feed, err := dup(configW)
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	go func() { // blocks if the input is larger than the pipe buffer
		_, _ = feed.Write(input) // the helper reports incomplete input
		_ = feed.Close()
	}()
	go h.wait(n, role, report)
	return h, nil
}

// wait reads the helper's report and waits for the process.
func (h *helper) wait(n *Node, role string, report *os.File) {
	var r helperReport
	derr := json.NewDecoder(report).Decode(&r) // blocks until the helper reports or ends
	werr := h.cmd.Wait()
	_ = report.Close()
	switch {
	case derr == nil:
		h.err, h.removed = r.Error.Err(), r.Removed
	case werr != nil:
		h.err = lostReport(n, role, werr)
	}
	if h.lifeline != nil {
		_ = h.lifeline.Close()
	}
	close(h.ended)
}

// lostReport returns the error for a helper that has ended with err and without a report, because it was killed. The guard then
// records the error of the run.
func lostReport(n *Node, role string, err error) error {
	if role == layout.RoleParent {
		ctx, cancel := context.WithTimeout(context.Background(), killLimit)
		defer cancel()
		cleaned := waitHolder(ctx, n, func(h parent.LockHolder) bool { return !h.Locked || h.ParentPID > 0 })
		if r := lastExit(n); cleaned == nil && r != nil {
			return r.Err()
		}
	}
	if text, ended := proc.ErrorText(err); ended {
		return errdefs.Component("the %s process ended unexpectedly: %s", role, text)
	}
	return errdefs.Component("the %s process: %w", role, err)
}

// openLog opens the node's log for appending. It rotates the log first if it is larger than logRotateSize. Roles other than the
// parent log to /dev/null.
func openLog(n *Node, role string) (*os.File, error) {
	if role != layout.RoleParent {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	if err := os.MkdirAll(n.data.LogDir(), 0o700); err != nil {
		return nil, errdefs.Preflight("create the log dir: %w", err)
	}
	path := n.data.Log("node")
	if st, err := os.Stat(path); err == nil && st.Size() > logRotateSize {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("rotate the log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return f, nil
}

// logRotateSize is the size in bytes above which a start rotates the node's log.
const logRotateSize = 16 << 20

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// dup returns a duplicate of f that is closed on exec.
func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate a descriptor: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
