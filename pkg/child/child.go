// Package child implements the part of a node that runs inside RootlessKit's namespaces. It has two roles. The child
// role is process 1 of the node's PID namespace: it prepares the file system and then runs RootlessKit's child. The
// node role is started by the child and supervises the components (internal/noderole).
//
// The package does not access anything outside the namespaces except the node's own directories on the host: the data
// dir and the runtime dir with RootlessKit's API socket.
//
// Runs in: child.
package child

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	rkchild "github.com/rootless-containers/rootlesskit/v3/pkg/child"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/deadchild"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/noderole"
	"github.com/rootlessnode/rootlessnode/pkg/copyup"
)

// reapAfter is how long an orphaned process may stay a zombie, and the longest time that a caller may take to wait for
// an ended child.
const reapAfter = time.Second

// Run executes the child role: RootlessKit's child with the node's file system. It returns when the node role has
// ended, with an error unless the node role exited with status 0. The parent reads the error from the runtime dir. Only
// node.Dispatch calls it.
func Run(log logrus.FieldLogger, rt layout.Runtime) error {
	failures, err := openFailures(rt)
	if err != nil {
		return err
	}
	return failures.report(run(log, rt))
}

func run(log logrus.FieldLogger, rt layout.Runtime) error {
	cfg, err := effectiveConfig(rt)
	if err != nil {
		return err
	}
	nd, err := networkDriver(cfg.Network.Driver, rt)
	if err != nil {
		return err
	}
	ports, err := portDriver(cfg.Ports.Driver)
	if err != nil {
		return err
	}
	// A working directory would stay below a later mount and expose the covered directory (/proc/PID/cwd).
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := setTargetRole(layout.RoleNode, rt); err != nil {
		return err
	}
	// RootlessKit's reaper also reaps children that other code waits for. Its port driver would then fail to find nft,
	// and forwarded connections would lose their client addresses.
	defer deadchild.ReapOrphans(reapAfter)()
	target := []string{"/proc/self/exe", layout.RoleNode, cfg.Name}
	err = rkchild.Child(rkchild.Opt{
		PipeFDEnvKey:             layout.EnvPipeFD,
		ChildUseActivationEnvKey: layout.EnvChildActivation,
		StateDirEnvKey:           layout.EnvStateDir,
		TargetCmd:                target,
		NetworkDriver:            nd,
		CopyUpDriver:             copyUpDriver{copyup.NewDriver(fileSystem(cfg, rt), log), cfg.DataDir},
		CopyUpDirs:               cfg.Mounts.CopyUp,
		PortDriver:               ports,
		MountProcfs:              true,
		Propagation:              cfg.Mounts.Propagation,
		// In the child, this option only mounts cgroup2 over /sys/fs/cgroup. The parent evacuates the cgroup itself
		// (cgroupv2.Subtree.Arrange).
		EvacuateCgroup2: true,
	})
	return describeExit(err, target)
}

// RunNode executes the node role: it prepares the namespaces, renders and supervises the components, and serves status
// and exec until SIGTERM, SIGINT, SIGHUP or a stop request on the status socket. The parent reads the error from the
// runtime dir. Only node.Dispatch calls it.
func RunNode(log *logrus.Logger, rt layout.Runtime, version string) error {
	failures, err := openFailures(rt)
	if err != nil {
		return err
	}
	return failures.report(runNode(log, rt, version))
}

func runNode(log *logrus.Logger, rt layout.Runtime, version string) error {
	// The parent forwards signals of its terminal; they must not arrive twice.
	if _, err := syscall.Setsid(); err != nil {
		return fmt.Errorf("create a session: %w", err)
	}
	cfg, err := effectiveConfig(rt)
	if err != nil {
		return err
	}
	handover, err := readHandover(rt)
	if err != nil {
		return err
	}
	return noderole.Run(noderole.Options{
		Config: cfg, Runtime: rt, Handover: handover, FileSystem: fileSystem(cfg, rt), Version: version, Log: log,
	})
}

// readHandover reads the parent's handover, and completes its network settings with those that the child got from DHCP.
func readHandover(rt layout.Runtime) (h layout.HandoverInfo, err error) {
	if err := layout.ReadJSON(rt.Handover(), &h); err != nil {
		return h, fmt.Errorf("read the parent's handover: %w", err)
	}
	var own layout.NetworkInfo
	if err := layout.ReadJSON(rt.Uplink(), &own); errors.Is(err, fs.ErrNotExist) {
		return h, nil
	} else if err != nil {
		return h, fmt.Errorf("read the child's network settings: %w", err)
	}
	n := &h.Network
	n.Interface, n.IP, n.PrefixLen, n.Gateway, n.DNS, n.MTU = own.Interface, own.IP, own.PrefixLen, own.Gateway, own.DNS, own.MTU
	return h, nil
}

// setTargetRole sets the role of the process that RootlessKit executes next. This is the target command if this process has
// capabilities in its user namespace; otherwise RootlessKit waits for the id map and executes the child again.
func setTargetRole(target string, rt layout.Runtime) error {
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		return fmt.Errorf("read the capabilities of this process: %w", err)
	}
	if caps[0].Effective == 0 {
		return nil
	}
	return layout.SetRole(target, rt)
}

// effectiveConfig reads the configuration that the parent wrote.
func effectiveConfig(rt layout.Runtime) (*config.NodeConfig, error) {
	cfg := &config.NodeConfig{}
	if err := layout.ReadJSON(rt.Config(), cfg); err != nil {
		return nil, fmt.Errorf("read the effective config: %w", err)
	}
	return cfg, nil
}

// fileSystem returns the specification of the node's file system.
func fileSystem(cfg *config.NodeConfig, rt layout.Runtime) copyup.Spec {
	data := layout.NewData(cfg.DataDir)
	spec := copyup.Spec{
		CopyUp:  cfg.Mounts.CopyUp,
		Real:    copyup.DefaultReal(),
		Keep:    []string{rt.Dir, data.Dir, cfg.ComponentsDir, os.Getenv("HOME")},
		Persist: data.Inside(),
		// As on any host, /run is in memory: its sockets, locks and state mean nothing after a restart.
		Volatile:  []string{"/run"},
		Merged:    copyup.DefaultMerged(),
		Rewritten: rewritten(),
		MaskKmsg:  true,
	}
	if exe, err := os.Executable(); err == nil {
		spec.Keep = append(spec.Keep, exe)
	}
	for _, b := range data.Binds() {
		spec.Binds = append(spec.Binds, copyup.Bind{Source: b.Host, Target: b.Inside, Mode: os.FileMode(b.Mode)})
	}
	if dir := cfg.Containerd.RegistryConfigDir; dir != "" {
		spec.Binds = append(spec.Binds, copyup.Bind{Source: dir, Target: layout.InsideRegistryConf})
	}
	spec.Covers = covers(rt, append(spec.Keep, cfg.Containerd.RegistryConfigDir))
	return spec
}
