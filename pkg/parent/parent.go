// Package parent implements the host-side role of a node. The parent acquires the node's lock, claims a cgroup, lets RootlessKit create
// the namespaces and the network, and waits until the child has ended. The node role supervises the components inside. The guard, a
// separate process, cleans up after the parent has ended (see guard.go).
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
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	rkparent "github.com/rootless-containers/rootlesskit/v3/pkg/parent"
	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/login"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Options are options for Run. Config, Runtime and Log are required.
type Options struct {
	// Config is the validated config with all defaults set, including the components directory.
	Config *config.NodeConfig
	// Runtime has the paths of the files of this run. Only the account may have access to its parent directory.
	Runtime layout.Runtime
	Log     logrus.FieldLogger
	// Versions are those of the programs that will use the data.
	Versions datadir.Versions
	// LogWriter receives the output of helper processes such as slirp4netns. Default: standard error.
	LogWriter io.Writer
	// TTL stops the node after this time, as if ctx had ended, if it is greater than zero.
	TTL time.Duration
	// Lifeline stops the node at end of file, as if ctx had ended. It may be nil.
	Lifeline *os.File
	// Listeners are listening sockets that the service manager opened for the node's ports. Only the port driver builtin uses
	// them.
	Listeners []*net.TCPListener
}

// Run starts the node and blocks until it has ended. The node stops when ctx ends, the lifeline ends, or the process gets SIGTERM,
// SIGINT or SIGHUP, in any phase; Run returns nil then, unless the node reports an error. A second SIGINT, such as another ^C in a
// terminal, or the end of Timeouts.Stop kills the node.
//
// Call Run only once in a process, and only from the process's main program, because RootlessKit executes /proc/self/exe with the same
// arguments.
//
// Errors: of class errdefs.ErrAlreadyRunning if the node is running; errdefs.ErrPreflight if the cgroup or the namespaces cannot be
// created; errdefs.ErrComponent if the node ended because the uplink or a component failed.
//
// Runs in: parent.
func Run(ctx context.Context, o Options) error {
	if o.LogWriter == nil {
		o.LogWriter = os.Stderr
	}
	r := &run{Options: o, data: layout.NewData(o.Config.DataDir), started: time.Now(), forwarding: newForwarding(o)}
	r.output = currentOutput(r.data.Log(nodeLog))
	// Before the lock is held, because another process that finds the lock may send a signal.
	r.signals = make(chan os.Signal, 4)
	signal.Notify(r.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(r.signals)
	lock, err := takeLock(o.Runtime)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // the guard holds the same locks until it has cleaned up
	dataLock, err := r.prepare()
	if err != nil {
		removeRuntime(o.Runtime)
		return err
	}
	defer func() { _ = dataLock.Close() }()
	r.guard, err = startGuard(o.Runtime, r.data, lock, dataLock, o.Log)
	if err != nil {
		removeRuntime(o.Runtime)
		return err
	}
	defer r.guard.close()
	if o.TTL > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, o.TTL, errTTL)
		defer cancel()
		ctx = limited
	}
	err = r.node(ctx)
	return r.conclude(err)
}

// errTTL is the cause of a context that ended after Options.TTL.
var errTTL = errors.New("the time limit of this run has passed")

// run is the state of Run.
type run struct {
	Options
	data    layout.Data
	started time.Time
	output  output
	signals chan os.Signal
	guard   *guard
	subtree *cgroupv2.Subtree
	claimed cgroupv2.Delegation
	// uncapped has the caps of Config.Resources that the kernel refused, with the reason.
	uncapped map[string]string
	// networkWarnings returns the features that the network driver cannot provide on this host; nil for a driver without warnings.
	networkWarnings func() []string
	// loginFaults describes the attributes of the login that the node keeps.
	loginFaults []string
	// portsWhy is the reason for the choice of Config.Ports.Driver.
	portsWhy string
	// forwarding publishes the state of the forwarded ports.
	forwarding *forwarding
}

// prepare creates the directories of a run, acquires the lock in the data dir and writes the effective config. It returns an error if the
// data dir belongs to another node, or if its data was created with other ids than RootlessKit will map.
func (r *run) prepare() (nodeLock, error) {
	if err := clearRuntime(r.Runtime); err != nil {
		return nodeLock{}, err
	}
	ids, account, err := datadir.CurrentIDs(r.Config.Subids.Source)
	if err != nil {
		return nodeLock{}, errdefs.Class(errdefs.ErrPreflight, err)
	}
	if err := datadir.Claim(r.data, r.Config.Name, ids, account); err != nil {
		return nodeLock{}, err
	}
	if err := os.MkdirAll(r.Runtime.Dir, 0o700); err != nil {
		return nodeLock{}, fmt.Errorf("create %s: %w", r.Runtime.Dir, err)
	}
	lock, err := takeDataLock(r.data, r.Config.Name)
	if err != nil {
		return nodeLock{}, err
	}
	if err := r.prepareFiles(); err != nil {
		return nodeLock{}, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// useData prepares the data for the versions of the programs of this run. The guard is running, because this may take long.
func (r *run) useData() error {
	taken, err := datadir.Use(r.data, r.Versions)
	if taken != nil {
		r.Log.WithFields(logrus.Fields{"snapshot": taken.Name, "was": taken.Versions.Kubernetes, "now": r.Versions.Kubernetes}).
			Info("upgrading the data; its former state is in a snapshot")
	}
	return err
}

func (r *run) prepareFiles() error {
	for _, dir := range []string{r.Runtime.StateDir(), r.data.LogDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create %s: %w", dir, err)
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

// chooseDrivers resolves the driver auto in a copy of the caller's config, and chooses another network than the default if the host uses
// that.
func (r *run) chooseDrivers() {
	c := *r.Config
	c.Network.Driver = ResolveDriver(&c)
	c.Ports.Driver, r.portsWhy = resolvePorts(&c, findSystemProgram)
	c.Network.CIDR = preflight.TapNetwork(&c)
	r.Config = &c
	r.Log.WithFields(logrus.Fields{"network": c.Network.Driver, "cidr": c.Network.CIDR, "ports": c.Ports.Driver, "why": r.portsWhy}).Info("selected drivers")
}

// node prepares the data, claims the cgroup and runs RootlessKit's parent until the child ends.
func (r *run) node(ctx context.Context) error {
	if err := r.useData(); err != nil {
		return err
	}
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
	up := r.uplink(network)
	if up != nil {
		network = up
	}
	hook := &networkHook{ParentDriver: network, name: r.Config.Network.Driver, after: r.finishSetup, uplink: r.Runtime.Uplink()}
	watch, err := newWatch(r.Options, hook, up, r.signals)
	if err != nil {
		return err
	}
	defer watch.close()
	addresses, err := watchAddresses(func(err error) { r.Log.WithError(err).Warn("update the host's addresses") }, r.addressFiles(ctx)...)
	if err != nil {
		return err
	}
	defer addresses.close()
	stopResolver, err := addresses.watchResolver(func(err error) { r.Log.WithError(err).Warn("update the host's resolver configuration") })
	if err != nil {
		return err
	}
	defer stopResolver()
	stopHostPorts, err := r.serveHostPorts()
	if err != nil {
		return err
	}
	defer stopHostPorts()
	stopCredentials, err := r.serveCredentials()
	if err != nil {
		return err
	}
	defer stopCredentials()
	defer r.forwarding.start(ctx)()
	if err := setChildEnv(layout.RoleChild, r.Runtime); err != nil {
		return err
	}
	defer layout.DropPrivateEnv()
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
		// EvacuateCgroup2 is not set, because RootlessKit would move all processes of the current cgroup, and would fail at the
		// first file that it cannot read. cgroupv2.Subtree.Arrange moves only the parent and the child.
	}
	done := make(chan error, 1)
	go func() {
		// The parent-death signal of the child and the helpers is bound to the thread that started them (prctl(2)). A locked
		// thread does not end before the process.
		runtime.LockOSThread()
		r.loginFaults = login.Reset()
		done <- rkparent.Parent(opt)
	}()
	return watch.wait(ctx, done)
}

// setChildEnv sets the environment of this process, which RootlessKit passes to its child and to the programs inside.
func setChildEnv(role string, rt layout.Runtime) error {
	environ := login.Environment(os.Environ())
	os.Clearenv()
	for _, kv := range environ {
		key, value, _ := strings.Cut(kv, "=")
		if err := os.Setenv(key, value); err != nil {
			return err
		}
	}
	return errors.Join(layout.SetRole(role, rt), os.Setenv("PATH", withSbin(os.Getenv("PATH"))))
}

// withSbin adds the directories of system programs to a search path. Some distributions omit them from the PATH of ordinary users, but
// they contain nft, iptables and conntrack.
func withSbin(path string) string {
	dirs := filepath.SplitList(path)
	for _, d := range hostinfo.SbinDirs() {
		if !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}

// claim detects the delegated cgroup, creates the node's subtree in it and moves this process there, so that the subtree is the root of
// the child's cgroup namespace.
func (r *run) claim(ctx context.Context) error {
	host, err := cgroupv2.DetectHost(cgroupv2.Options{})
	if err != nil {
		return err
	}
	r.claimed, err = cgroupv2.Detect(host, cgroupv2.Options{})
	if err != nil {
		return err
	}
	// Before it exists, because the parent may be killed while it moves other processes.
	r.guard.note(func(n *guardNote) { n.Cgroup = cgroupv2.SubtreePath(r.claimed, r.Config.Name) })
	r.subtree, err = cgroupv2.Claim(ctx, r.claimed, r.Config.Name, cgroupv2.Options{})
	if err != nil {
		return err
	}
	r.guard.note(func(n *guardNote) { n.Cgroup = r.subtree.Path() })
	r.uncapped = r.subtree.Limit(r.Config.Resources.Limits())
	return atomicfile.Write(r.Runtime.CgroupFile(), []byte(r.subtree.Path()+"\n"), 0o600)
}

// finishSetup sets up the cgroups and writes the handover file. It runs after the network was configured, while the child still waits.
func (r *run) finishSetup(childPID int, n layout.NetworkInfo) error {
	report, err := r.subtree.Arrange(os.Getpid(), childPID)
	if err != nil {
		return err
	}
	n.Driver, n.Ports, n.PortsWhy = r.Config.Network.Driver, r.Config.Ports.Driver, r.portsWhy
	if r.networkWarnings != nil {
		n.Warnings = r.networkWarnings()
	}
	n.Warnings = append(n.Warnings, r.loginFaults...)
	return layout.WriteJSON(r.Runtime.Handover(), layout.HandoverInfo{
		ParentPID: os.Getpid(), ChildPID: childPID, StartedAt: r.started, TTL: r.TTL, Network: n,
		Cgroup: layout.CgroupInfo{
			Path: r.subtree.Path(), Source: r.claimed.Source, Enabled: report.Enabled, Unenforced: report.Unenforced,
			Ceiling: r.subtree.Ceiling(), Refused: r.uncapped,
		},
		RegistryPorts: r.registryPorts(),
	})
}

// conclude returns the error with which the node ended, and records it for `status`.
func (r *run) conclude(err error) error {
	// The report of the roles inside has more detail than their exit status.
	var inside errdefs.Report
	if layout.ReadJSON(r.Runtime.Failure(), &inside) == nil {
		err = inside.Err()
	}
	if err == nil {
		return nil
	}
	err = r.output.attach(err)
	if werr := layout.WriteState(r.data.LastExit(), errdefs.ReportOf(err)); werr != nil {
		r.Log.WithError(werr).Warn("record the error of this run")
	}
	return err
}

func ensureDir(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	if err := os.Chmod(dir, mode); err != nil { // MkdirAll applies the umask
		return fmt.Errorf("set the mode of %s: %w", dir, err)
	}
	return nil
}

// clearRuntime removes the cgroup and the files of an earlier run that was killed together with its guard. The caller must hold the
// lock.
func clearRuntime(rt layout.Runtime) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpLimit)
	defer cancel()
	if err := removeCgroup(ctx, rt, ""); err != nil {
		return fmt.Errorf("remove the cgroup of a crashed run: %w", err)
	}
	if err := os.RemoveAll(rt.Dir); err != nil {
		return fmt.Errorf("remove the runtime dir of a crashed run: %w", err)
	}
	return nil
}

// removeRuntime removes the files of a run that has no guard. It ignores errors, because the next run removes them, too.
func removeRuntime(rt layout.Runtime) {
	_ = os.RemoveAll(rt.Dir)
	_ = os.Remove(rt.Lock())
	_ = os.Remove(filepath.Dir(rt.Lock())) // only if it is empty
}
