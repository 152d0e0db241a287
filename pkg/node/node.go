// Package node is the door for programs that embed a rootless Kubernetes node, and what the command line is made of.
//
//	func main() {
//		node.Dispatch() // first of all
//		n, err := node.New(config.Default(), node.Options{})
//		...
//		err = n.Start(ctx)
//		err = n.WaitReady(ctx, nil)
//		...
//		err = n.Stop(ctx)
//	}
//
// Start runs the node's parent as a helper process of the same executable, so the host program keeps its signals,
// environment, standard streams and arguments. Should the host program end, however it does, the node ends with it,
// unless Options.Detach was set. A program may hold several nodes of different names.
//
// Runs in: parent.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/datadir"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/nodeexec"
	"github.com/rootlessnode/rootlessnode/pkg/parent"
	"github.com/rootlessnode/rootlessnode/pkg/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// Options for New and Attach. The zero value is usable.
type Options struct {
	// Log takes what the host side has to say. Default: nothing is logged.
	Log logrus.FieldLogger
	// Detach lets the node live on when the process that started it ends.
	Detach bool
	// JoinToken is the bootstrap token, "ID.SECRET", with which a node joins its cluster (config.Join.Server) for the first
	// time. It stays on the host's side: Start and RunForeground use it once; it is written into no config and passed to no
	// component. Nodes that have joined need none.
	JoinToken string
}

// Node is a handle on one node, running or not. Its methods may be called from any goroutine.
type Node struct {
	cfg    atomic.Pointer[config.NodeConfig] // replaced when a worker's cluster tells what it wants
	rt     layout.Runtime
	data   layout.Data
	reg    datadir.Registry
	log    logrus.FieldLogger
	detach bool
	tried  []string // places that hold no components
	held   held
	// joinToken is Options.JoinToken.
	joinToken string

	mu     sync.Mutex
	helper *helper
}

// New completes and validates cfg, finds the runtime dir and the components, and returns a handle. It starts nothing
// and makes nothing. cfg is the caller's to keep; the node has a copy.
//
// Errors: of class ErrConfig with every fault of cfg, or for a data dir that is not the node's to use; of class ErrPreflight for root. That an account has no runtime dir is
// found by Check and refused by Start, with all else that is missing.
func New(cfg *config.NodeConfig, o Options) (*Node, error) {
	n, noRuntimeDir, err := build(cfg, o, true)
	if err == nil && os.Getuid() == 0 {
		err = noRuntimeDir
	}
	if err != nil {
		return nil, err
	}
	return n, nil
}

// build is New. Where there is no runtime dir it says so, and the node has the one that should be there. The data dir is checked
// for a start only.
func build(cfg *config.NodeConfig, o Options, start bool) (_ *Node, noRuntimeDir, err error) {
	own := *cfg
	n := &Node{log: o.Log, detach: o.Detach, joinToken: o.JoinToken}
	n.cfg.Store(&own)
	if n.log == nil {
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		n.log = quiet
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, nil, fmt.Errorf("read the host name: %w", err)
	}
	xdgData, err := xdgDataHome()
	if err != nil {
		return nil, nil, err
	}
	n.reg = datadir.Registry{XDGDataHome: xdgData}
	if err := n.locate(&own); err != nil {
		return nil, nil, err
	}
	facts := config.HostFacts{Hostname: host, XDGDataHome: xdgData}
	unreadable := rejoin(&own, facts) // of less interest than a data dir that is refused
	own.Complete(facts)
	invalid := own.Validate()
	base, _, noRuntimeDir := preflight.ResolveRuntimeDir(os.Environ(), os.Getuid(), "")
	if noRuntimeDir != nil {
		base = filepath.Join(hostinfo.UserRuntimeDirs, strconv.Itoa(os.Getuid()))
	}
	if invalid == nil {
		own.Network.Driver = parent.ResolveDriver(&own)
	}
	n.rt = layout.NewRuntime(base, own.Name)
	n.data = layout.NewData(own.DataDir)
	if own.ComponentsDir == "" {
		own.ComponentsDir, n.tried = findComponents(xdgData)
	}
	if start && filepath.IsAbs(own.DataDir) {
		invalid = errors.Join(invalid, n.missing(cfg.DataDir), n.place().Check())
	}
	if invalid != nil {
		return nil, nil, invalid
	}
	if unreadable != nil {
		return nil, nil, unreadable
	}
	return n, noRuntimeDir, nil
}

// Attach returns a handle on the node of that name, running or not, with the config it runs with, else the default one with
// the data dir of the last start.
//
// Errors: as New's; of class ErrPreflight when there is no runtime dir.
func Attach(name string, o Options) (*Node, error) {
	cfg := config.Default()
	cfg.Name = name
	n, noRuntimeDir, err := build(cfg, o, false)
	if err == nil {
		err = noRuntimeDir
	}
	if err != nil {
		return nil, err
	}
	var running config.NodeConfig
	switch err := layout.ReadJSON(n.rt.Config(), &running); {
	case err == nil:
		n.cfg.Store(&running)
		n.data = layout.NewData(running.DataDir)
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("read the running node's config: %w", err)
	}
	return n, nil
}

// findComponents returns the components directory, or "" and the places that were searched when there is none: the
// preflight says so.
func findComponents(xdgData string) (dir string, tried []string) {
	dir, tried, err := preflight.FindComponents("", executable(), xdgData, filepath.SplitList(os.Getenv("PATH")))
	if err != nil {
		return "", tried
	}
	return dir, nil
}

func xdgDataHome() (string, error) {
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("find the data dir: %w", err)),
			"set HOME or XDG_DATA_HOME")
	}
	return filepath.Join(home, ".local", "share"), nil
}

// Config is the node's configuration, complete. The caller must not change it.
func (n *Node) Config() *config.NodeConfig { return n.cfg.Load() }

// Runtime names the files of a run.
func (n *Node) Runtime() layout.Runtime { return n.rt }

// Data names the files that survive a stop.
func (n *Node) Data() layout.Data { return n.data }

// Kubeconfig is the path of the kubeconfig for the host, mode 0600: the administrator's, on a worker the node's own. It exists
// once the node was started.
func (n *Node) Kubeconfig() string { return n.data.AdminKubeconfig() }

// ComponentPath is the path of a program of the components, for example kubectl.
func (n *Node) ComponentPath(name string) (string, error) {
	p := filepath.Join(n.Config().ComponentsDir, name)
	if n.Config().ComponentsDir == "" {
		return "", errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, errors.New("find the components: there are none")), "make components")
	}
	if _, err := exec.LookPath(p); err != nil {
		return "", errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("find %s among the components: %w", name, err))
	}
	return p, nil
}

// Check looks at the host without changing anything and returns what it finds, good and bad.
func (n *Node) Check(ctx context.Context) ([]preflight.Finding, error) {
	findings := preflight.Run(ctx, preflight.Input{
		Config: n.Config(), Runtime: n.rt, Data: n.data, ComponentsDir: n.Config().ComponentsDir, ComponentsTried: n.tried, UID: os.Getuid(), Env: os.Environ(), Exe: executable(), Running: n.running(),
		Held: n.held.addresses(),
	})
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return findings, nil
}

// preflight refuses a host on which the node cannot run, and logs what is merely not as it should be.
func (n *Node) preflight(ctx context.Context) error {
	h, err := parent.Holder(n.rt)
	if err != nil {
		return err
	}
	if h.ParentPID > 0 {
		return errdefs.WithHintf(errdefs.Class(errdefs.ErrAlreadyRunning,
			fmt.Errorf("start the node %q: it is already running (parent pid %d)", n.Config().Name, h.ParentPID)),
			"rootlessnode --name %[1]s status\nrootlessnode --name %[1]s down", n.Config().Name)
	}
	findings, err := n.Check(ctx)
	if err != nil {
		return err
	}
	for _, f := range findings {
		if f.Level == preflight.LevelWarn {
			n.log.WithField("check", f.Check).Warn(f.Message)
		}
	}
	return preflight.Err(findings)
}

// Exec runs a program inside the node, in its namespaces and its cgroup, and returns its exit code. See nodeexec.Run.
func (n *Node) Exec(ctx context.Context, req nodeexec.Request) (int, error) {
	return nodeexec.Run(ctx, n.rt.ExecSocket(), req)
}

// Status is the picture now. For a node that does not run it has State stopped, or failed with the reason of the last
// run's end.
func (n *Node) Status(ctx context.Context) (*status.Status, error) {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	s, err := c.Status(ctx)
	if err == nil || !errors.Is(err, errdefs.ErrNotRunning) {
		return s, err
	}
	return n.statusWithout()
}

// statusWithout is the status of a node whose socket does not answer.
func (n *Node) statusWithout() (*status.Status, error) {
	h, err := parent.Holder(n.rt)
	if err != nil {
		return nil, err
	}
	s := &status.Status{
		Name: n.Config().Name, NodeName: n.Config().NodeName, Version: Version, State: status.NodeStopped,
		DataDir: n.data.Dir, RuntimeDir: n.rt.Dir, ParentPID: h.ParentPID,
	}
	switch {
	case h.ParentPID > 0:
		s.State, s.Reason = status.NodeStarting, "the namespaces are being made"
	case h.Locked:
		s.State, s.Reason = status.NodeStopping, "the last run is being cleaned up"
	default:
		if r := n.lastExit(); r != nil {
			s.State, s.Reason = status.NodeFailed, r.Message
		}
	}
	return s, nil
}

// lastExit is why the last run ended, if by a fault.
func (n *Node) lastExit() *errdefs.Report {
	var r errdefs.Report
	if layout.ReadJSON(n.data.LastExit(), &r) != nil {
		return nil
	}
	return &r
}

// Events calls fn for each event since the node was started, and with follow for those to come, until the node or ctx
// ends or fn returns an error.
func (n *Node) Events(ctx context.Context, follow bool, fn func(status.Event) error) error {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	return c.Events(ctx, follow, fn)
}

// lockPoll is how often a lock is looked at until it is free. Its end cannot be watched without taking it.
const lockPoll = 5 * time.Millisecond

// executable is our own path without links; empty when the kernel does not tell.
func executable() string {
	exe, err := os.Executable()
	if err != nil {
		return ""
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		return real
	}
	return exe
}

func (n *Node) running() bool {
	h, err := parent.Holder(n.rt)
	return err == nil && h.ParentPID > 0
}
