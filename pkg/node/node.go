// Package node starts, stops and inspects rootless Kubernetes nodes. It is the entry point for programs that embed a node; the
// command line uses it too.
//
//	func main() {
//		node.Dispatch() // must come first
//		n, err := node.New(config.Default(), node.Options{})
//		...
//		err = n.Start(ctx)
//		err = n.WaitReady(ctx, nil)
//		...
//		err = n.Stop(ctx)
//	}
//
// # Processes
//
// Start runs the node's parent process as a helper process of the same executable. The host program therefore keeps its signals,
// environment, standard streams and arguments. When the host program ends, even if it is killed, the node ends too, unless
// Options.Detach is set. RunForeground runs the parent in the calling process instead.
//
// # Handles
//
// New returns a handle for a node that the program configures, Attach one for an existing node by its name. A program may have
// handles for several nodes with different names. A node has at most one running instance at a time.
//
// # Errors
//
// Errors have a class of package errdefs and often hints: commands that fix the cause. Test for a class with errors.Is and use
// errdefs.ReportOf to get the hints.
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
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/parent"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// Options are options for New and Attach. The zero value is valid.
type Options struct {
	// Log receives the log messages of the host side. If nil, they are discarded.
	Log logrus.FieldLogger
	// Detach keeps the node running after the process that started it has ended.
	Detach bool
	// JoinToken is the bootstrap token, "ID.SECRET", with which a node joins the cluster at config.Join.Server for the first
	// time. Start and RunForeground use it once. It is not written to the config and not passed to components. A node that has
	// already joined does not need it.
	JoinToken string
	// Settings are kept with the node's data at a start, for a later LastSettings: what the user set of the config. If it is nil, the
	// start removes those of an earlier start. New itself never uses them: the node has exactly the configuration that it is given.
	Settings *config.Settings
	// TTL stops the node in order after this time, if it is greater than zero. Time in which the host is suspended does not count.
	TTL time.Duration
	// HiddenWarnings, if it is set, hides warnings about the host that the last start has logged too, and is called with their number.
	HiddenWarnings func(hidden int)

	// hostname replaces os.Hostname in tests.
	hostname func() (string, error)
}

// Node is a handle for one node, which may be running or stopped. Its methods are safe for concurrent use.
type Node struct {
	cfg         atomic.Pointer[config.NodeConfig] // replaced when a worker receives the settings of its cluster
	rt          layout.Runtime
	data        layout.Data
	reg         datadir.Registry
	log         logrus.FieldLogger
	detach      bool
	host        string   // the host's name, as the name of a Node object
	namedByUser bool     // the caller's config sets nodeName
	deleting    bool     // the removal of the data was interrupted
	tried       []string // directories that were searched for components without success
	listeners   inheritedListeners
	// joinToken is Options.JoinToken, cleared after its use.
	joinToken string
	settings  *config.Settings // Options.Settings
	hidden    func(int)        // Options.HiddenWarnings
	ttl       time.Duration    // Options.TTL
	warned    []string         // the warnings of the last preflight

	mu     sync.Mutex
	helper *helper
}

// New returns a handle for the node that cfg describes. It sets the defaults in a copy of cfg, validates the copy, and finds the
// runtime dir and the components. It starts no process and creates no file.
//
// Errors: of class errdefs.ErrConfig with all invalid fields of cfg, or if the data dir contains data that is not the node's; of class
// errdefs.ErrPreflight if the caller is root. A missing runtime dir is not an error here: Check and Start report it together with the
// other unmet host requirements.
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

// build returns a handle for New and Attach. If the account has no runtime dir, it returns the reason as noRuntimeDir, and the
// handle uses the path where the runtime dir is expected. It checks the config and the data dir only if start is set.
func build(cfg *config.NodeConfig, o Options, start bool) (_ *Node, noRuntimeDir, err error) {
	own := *cfg
	n := newHandle(o)
	n.namedByUser = cfg.NodeName != ""
	n.cfg.Store(&own)
	if o.hostname == nil {
		o.hostname = os.Hostname
	}
	host, err := o.hostname()
	if err != nil {
		return nil, nil, fmt.Errorf("read the host name: %w", err)
	}
	xdgData, err := xdgDataHome()
	if err != nil {
		return nil, nil, err
	}
	n.reg = datadir.Registry{XDGDataHome: xdgData}
	if err := locate(n, &own); err != nil {
		return nil, nil, err
	}
	n.host = config.NodeNameOf(host)
	was, deleting := formerIdentity(&own)
	n.deleting = deleting
	recall(&own, was)
	facts := config.HostFacts{Hostname: host, XDGDataHome: xdgData, XDGConfigHome: xdgConfigHome()}
	unreadable := rejoin(&own, facts) // returned last, because errors of the config and the data dir are more useful
	own.Complete(facts)
	var invalid error
	if start {
		invalid = own.Validate()
	}
	base, noRuntimeDir := runtimeDirs()
	if invalid == nil {
		own.Network.Driver = parent.ResolveDriver(&own)
	}
	n.rt = layout.NewRuntime(base, own.Name)
	n.data = layout.NewData(own.DataDir)
	if own.ComponentsDir == "" {
		own.ComponentsDir, n.tried = findComponents(xdgData)
	}
	if start && filepath.IsAbs(own.DataDir) {
		invalid = errors.Join(invalid, checkDataPresent(n, cfg.DataDir), place(n).Check(), checkKubernetesVersion(&own))
		if !deleting {
			invalid = errors.Join(invalid, datadir.CheckState(n.data, os.Getuid()), checkIdentity(n, cfg, was), checkQuota(n))
		}
	}
	if invalid != nil {
		return nil, nil, invalid
	}
	if unreadable != nil && start {
		return nil, nil, unreadable
	}
	return n, noRuntimeDir, nil
}

// newHandle returns a handle without a configuration.
func newHandle(o Options) *Node {
	n := &Node{log: o.Log, detach: o.Detach, joinToken: o.JoinToken, settings: o.Settings, hidden: o.HiddenWarnings, ttl: o.TTL}
	if n.log == nil {
		discard := logrus.New()
		discard.SetOutput(io.Discard)
		n.log = discard
	}
	return n
}

// findComponents returns the components directory, or "" and the searched directories, which the preflight reports.
func findComponents(xdgData string) (dir string, tried []string) {
	dir, tried, err := preflight.FindComponents("", executable(), xdgData, filepath.SplitList(os.Getenv("PATH")))
	if err != nil {
		return "", tried
	}
	return dir, nil
}

// Config returns the node's configuration with defaults set. The caller must not change it.
func (n *Node) Config() *config.NodeConfig { return n.cfg.Load() }

// Runtime returns the paths of the files that exist while the node is running.
func (n *Node) Runtime() RuntimePaths { return n.rt }

// Data returns the paths of the files that survive a stop.
func (n *Node) Data() DataPaths { return n.data }

// Kubeconfig returns the path of the kubeconfig for use on the host. Its user is the cluster administrator, or on a worker the node
// itself. The file has mode 0600 and is created by the first start.
func (n *Node) Kubeconfig() string { return n.data.AdminKubeconfig() }

// ComponentPath returns the path of a program in the components directory, for example kubectl.
//
// Errors: of class errdefs.ErrPreflight if there is no components directory or the program is not in it.
func (n *Node) ComponentPath(name string) (string, error) {
	p := preflight.Program(preflight.ProgramDirs(n.Config()), name)
	if n.Config().ComponentsDir == "" {
		return "", errdefs.Preflight("find the components: not found").Hint("make components")
	}
	if _, err := exec.LookPath(p); err != nil {
		return "", errdefs.Preflight("find component program %s: %w", name, err)
	}
	return p, nil
}

// Check checks the requirements of the node on the host and returns the results of all checks, including the passed ones. It leaves
// nothing changed. It returns an error only if ctx ends.
func (n *Node) Check(ctx context.Context) ([]Finding, error) {
	cfg := n.Config()
	_, driverFault := parent.Executable(cfg.Network.Driver, cfg.ComponentsDir)
	findings := preflight.Run(ctx, preflight.Input{
		Config: cfg, Runtime: n.rt, Data: n.data, ComponentsDir: cfg.ComponentsDir, ComponentsTried: n.tried, UID: os.Getuid(), Env: os.Environ(),
		Exe: executable(), Running: isRunning(n), InheritedListeners: n.listeners.addresses(), DriverFault: driverFault,
	})
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return findings, nil
}

// runPreflight returns an error if the node is already running or cannot run on this host. It logs the warnings among the findings.
func runPreflight(ctx context.Context, n *Node) error {
	h, err := parent.Holder(n.rt, n.data)
	if err != nil {
		return err
	}
	if h.ParentPID > 0 && exists(n.rt.Removal()) {
		return errdefs.AlreadyRunning("start node %q: its data is being deleted (pid %d); try again later", n.Config().Name, h.ParentPID)
	}
	if h.ParentPID > 0 {
		return errdefs.AlreadyRunning("start node %q: already running (parent pid %d)", n.Config().Name, h.ParentPID).
			Do(errdefs.ShowStatus).Do(errdefs.Stop)
	}
	findings, err := n.Check(ctx)
	if err != nil {
		return err
	}
	logWarnings(n, findings)
	return preflight.Err(findings)
}

// Exec runs a program in the namespaces and the cgroup of the node and returns its exit code. See nodeexec.Run.
//
// Errors: of class errdefs.ErrNotRunning if the node is not running.
func (n *Node) Exec(ctx context.Context, req ExecRequest) (int, error) {
	code, err := nodeexec.Run(ctx, n.rt.ExecSocket(), req)
	return code, explain(n, err)
}

// Events calls fn for each event that the node has kept since its start and, if follow is set, for each new event until the node or
// ctx ends. It returns nil then, or the error of fn.
//
// Errors: of class errdefs.ErrNotRunning if the node is not running.
func (n *Node) Events(ctx context.Context, follow bool, fn func(status.Event) error) error {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	return explain(n, c.Events(ctx, follow, fn))
}

// Metrics returns the metrics of the node in the text format of Prometheus.
//
// Errors: of class errdefs.ErrNotRunning if the node is not running.
func (n *Node) Metrics(ctx context.Context) ([]byte, error) {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	text, err := c.Metrics(ctx)
	return text, explain(n, err)
}

// lockPoll is the interval for polling the node's lock. The kernel reports the release of a lock only to processes that wait to
// acquire it.
const lockPoll = 5 * time.Millisecond

// executable returns the path of the running program with symbolic links resolved, or "" if it is unknown.
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

func isRunning(n *Node) bool {
	h, err := parent.Holder(n.rt, n.data)
	return err == nil && h.ParentPID > 0
}
