// Package parent is the host-side role of a node: it takes the lock of the runtime dir, claims a cgroup, lets RootlessKit
// build the namespaces and the network, and stays until the child has ended. It supervises nothing inside, that is the
// node role's work, and it removes nothing itself: the guard does, which outlives it (see guard.go).
//
// Runs in: parent.
package parent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	rkparent "github.com/rootless-containers/rootlesskit/v3/pkg/parent"
	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/datadir"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Options for Run. Config, Runtime and Log are required.
type Options struct {
	// Config is complete and valid, with the components directory found.
	Config *config.NodeConfig
	// Runtime is where this run keeps its files. Its parent directory must be private to the account.
	Runtime layout.Runtime
	Log     logrus.FieldLogger
	// LogWriter takes the output of helper processes such as slirp4netns. Default: standard error.
	LogWriter io.Writer
	// Lifeline: end of file on it stops the node, as if ctx had ended. Nil: nobody holds one.
	Lifeline *os.File
	// Listeners are listening sockets that the service manager opened for the node's ports. Only the port driver builtin takes
	// them over.
	Listeners []*net.TCPListener
}

// Run makes the node and blocks until it has ended. Ending ctx, the lifeline, or a TERM, INT or HUP to the process stops
// it in order, and Run returns nil if that went well. A second signal, or Timeouts.Stop running out, kills it.
//
// Errors: ErrAlreadyRunning when the lock is held; ErrPreflight when the cgroup or the namespaces cannot be had;
// ErrComponent when the uplink or something inside ended the node. Call it once in a process, from the process's main
// program: RootlessKit executes /proc/self/exe again with the same arguments. Runs in: parent.
func Run(ctx context.Context, o Options) error {
	if o.LogWriter == nil {
		o.LogWriter = os.Stderr
	}
	r := &run{Options: o, data: layout.NewData(o.Config.DataDir), started: time.Now()}
	lock, err := takeLock(o.Runtime)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // the guard holds the same lock until it has cleaned up
	if err := r.prepare(); err != nil {
		return err
	}
	guard, err := startGuard(o.Runtime, lock.File, o.Log)
	if err != nil {
		return err
	}
	defer guard.close()
	err = r.node(ctx)
	return r.conclude(err)
}

// run is one Run.
type run struct {
	Options
	data    layout.Data
	started time.Time
	subtree *cgroupv2.Subtree
	claimed cgroupv2.Delegation
	// uncapped are the caps of Config.Resources that the kernel did not take.
	uncapped map[string]string
	// networkWarnings returns what the network driver could not do on this host; nil for a driver without any.
	networkWarnings func() []string
	// portsWhy is why Config.Ports.Driver is what it is.
	portsWhy string
}

// prepare makes the directories of a run and writes the effective config. The data dir must be this node's, with the ids that
// RootlessKit is going to map.
func (r *run) prepare() error {
	if err := clearRuntime(r.Runtime); err != nil {
		return err
	}
	ids, account, err := datadir.CurrentIDs(r.Config.Subids.Source)
	if err != nil {
		return errdefs.Class(errdefs.ErrPreflight, err)
	}
	if err := datadir.Claim(r.data, r.Config.Name, ids, account); err != nil {
		return err
	}
	for _, dir := range []string{r.Runtime.Dir, r.Runtime.StateDir(), r.data.LogDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	for _, b := range r.data.Binds() {
		if err := ensureDir(b.Host, os.FileMode(b.Mode)); err != nil {
			return err
		}
	}
	if err := os.Remove(r.data.LastExit()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the report of the last run: %w", err)
	}
	r.chooseDrivers()
	return layout.WriteJSON(r.Runtime.Config(), r.Config)
}

// chooseDrivers settles what auto means, in a copy: the caller's config is the caller's.
func (r *run) chooseDrivers() {
	c := *r.Config
	c.Network.Driver = ResolveDriver(&c)
	c.Ports.Driver, r.portsWhy = resolvePorts(&c, findSystemProgram)
	r.Config = &c
	r.Log.WithFields(logrus.Fields{"network": c.Network.Driver, "ports": c.Ports.Driver, "why": r.portsWhy}).Info("drivers")
}

// node claims the cgroup and runs RootlessKit's parent until the child ends.
func (r *run) node(ctx context.Context) error {
	if err := r.claim(ctx); err != nil {
		return err
	}
	network, err := r.networkDriver()
	if err != nil {
		return err
	}
	ports, err := r.portDriver()
	if err != nil {
		return err
	}
	if s, ok := network.(*slirp); ok {
		r.networkWarnings = s.Warnings
	}
	hook := &networkHook{ParentDriver: network, after: r.settle, uplink: r.Runtime.Uplink()}
	watch := newWatch(r.Options, hook)
	defer watch.close()
	book, err := keepAddresses(func(err error) { r.Log.WithError(err).Warn("the host's addresses are not followed") }, r.addressPages(ctx)...)
	if err != nil {
		return err
	}
	defer book.close()
	stopHostPorts, err := r.serveHostPorts()
	if err != nil {
		return err
	}
	defer stopHostPorts()
	if err := r.environment(); err != nil {
		return err
	}
	opt := rkparent.Opt{
		PipeFDEnvKey:             layout.EnvPipeFD,
		ChildUseActivationEnvKey: layout.EnvChildActivation,
		StateDir:                 r.Runtime.StateDir(),
		StateDirEnvKey:           layout.EnvStateDir,
		NetworkDriver:            hook,
		PortDriver:               ports,
		CreatePIDNS:              true,
		CreateCgroupNS:           true,
		CreateUTSNS:              true,
		CreateIPCNS:              true,
		Propagation:              r.Config.Mounts.Propagation,
		SubidSource:              rkparent.SubidSource(r.Config.Subids.Source),
		// EvacuateCgroup2 stays empty: RootlessKit would move every process of the current cgroup, and gives up at the
		// first file it cannot read. cgroupv2.Subtree.Arrange does it for our own two processes.
	}
	done := make(chan error, 1)
	go func() {
		// The death signal of the child and of the helpers is bound to the thread that started them (prctl(2)):
		// this one stays for the life of the process.
		runtime.LockOSThread()
		done <- rkparent.Parent(opt)
	}()
	return watch.wait(ctx, done)
}

// environment is what the child and node roles find; RootlessKit passes the caller's environment on whole.
func (r *run) environment() error {
	for _, k := range []string{layout.EnvRole, layout.EnvLifeline, layout.EnvReport, layout.EnvGuard} {
		if err := os.Unsetenv(k); err != nil {
			return err
		}
	}
	return errors.Join(
		os.Setenv(layout.EnvConfig, r.Runtime.Config()),
		os.Setenv("PATH", withSbin(os.Getenv("PATH"))),
	)
}

// withSbin adds the directories of system programs to a search path. Distributions leave them out of the PATH of
// ordinary users, and nft, iptables and conntrack lie there.
func withSbin(path string) string {
	dirs := filepath.SplitList(path)
	for _, d := range hostinfo.SbinDirs() {
		if !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}

// claim finds the delegated cgroup and puts this process into the node's own subtree of it, so that the child's cgroup
// namespace is rooted there.
func (r *run) claim(ctx context.Context) error {
	host, err := cgroupv2.DetectHost(cgroupv2.Options{})
	if err != nil {
		return err
	}
	r.claimed, err = cgroupv2.Detect(host, cgroupv2.Options{})
	if err != nil {
		return err
	}
	r.subtree, err = cgroupv2.Claim(ctx, r.claimed, r.Config.Name, cgroupv2.Options{})
	if err != nil {
		return err
	}
	r.uncapped = r.subtree.Limit(r.Config.Resources.Limits())
	return os.WriteFile(r.Runtime.CgroupFile(), []byte(r.subtree.Path()+"\n"), 0o600)
}

// settle runs when the child exists and its network is there: the last moment at which the child still waits.
func (r *run) settle(childPID int, n layout.NetworkInfo) error {
	report, err := r.subtree.Arrange(os.Getpid(), childPID)
	if err != nil {
		return err
	}
	n.Driver, n.Ports, n.PortsWhy = r.Config.Network.Driver, r.Config.Ports.Driver, r.portsWhy
	if r.networkWarnings != nil {
		n.Warnings = r.networkWarnings()
	}
	return layout.WriteJSON(r.Runtime.Handover(), layout.HandoverInfo{
		ParentPID: os.Getpid(), ChildPID: childPID, StartedAt: r.started, Network: n,
		Cgroup: layout.CgroupInfo{
			Path: r.subtree.Path(), Source: r.claimed.Source, Enabled: report.Enabled, Unenforced: report.Unenforced,
			Ceiling: r.subtree.Ceiling(), Refused: r.uncapped,
		},
	})
}

// conclude turns the way the node ended into the error that the caller tells, and records it for `status`.
func (r *run) conclude(err error) error {
	// What the node role left says more than "exit status 1" of its process. It is of this run: prepare removed any other.
	var inside errdefs.Report
	if layout.ReadJSON(r.data.LastExit(), &inside) == nil {
		return inside.Err()
	}
	if err == nil {
		return nil
	}
	if werr := layout.WriteJSON(r.data.LastExit(), errdefs.ReportOf(err)); werr != nil {
		r.Log.WithError(werr).Warn("the reason for the end is not recorded")
	}
	return err
}

func ensureDir(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	if err := os.Chmod(dir, mode); err != nil { // MkdirAll is subject to the umask
		return fmt.Errorf("set the mode of %s: %w", dir, err)
	}
	return nil
}

// clearRuntime removes what a run that was killed together with its guard left. The lock is held.
func clearRuntime(rt layout.Runtime) error {
	if b, err := os.ReadFile(rt.CgroupFile()); err == nil {
		path := filepath.Clean(string(trimNewline(b)))
		ctx, cancel := context.WithTimeout(context.Background(), cleanUpLimit)
		defer cancel()
		if err := cgroupv2.RemoveTree(ctx, path); err != nil {
			return fmt.Errorf("remove the cgroup of a run that crashed: %w", err)
		}
	}
	if err := os.RemoveAll(rt.Dir); err != nil {
		return fmt.Errorf("clear the runtime dir of a run that crashed: %w", err)
	}
	return nil
}

func trimNewline(b []byte) []byte {
	for len(b) > 0 && b[len(b)-1] == '\n' {
		b = b[:len(b)-1]
	}
	return b
}
