// Package child is what of a node runs inside RootlessKit's namespaces. It has two roles: the child, process 1 of the
// node's pid namespace, which prepares the file system and is RootlessKit's from then on; and the node role, which the
// child starts and which supervises the components.
//
// It never reaches out of the namespaces, except for the node's own directories on the host: the data dir, the runtime
// dir, and RootlessKit's API socket in it.
//
// Runs in: child.
package child

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	rkchild "github.com/rootless-containers/rootlesskit/v3/pkg/child"
	"github.com/rootless-containers/rootlesskit/v3/pkg/systemd/activation"
	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/deadchild"
	"github.com/rootlessnode/rootlessnode/pkg/copyup"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// reapAfter is how long an orphan stays a zombie, and the most that anybody may take to wait for a child that has ended.
const reapAfter = time.Second

// nodeCommand is what RootlessKit starts when the namespaces are ready: this executable again, in the node role.
func nodeCommand(name string) []string {
	return []string{"/proc/self/exe", "node", name}
}

// Run is the child role: RootlessKit's child with our file system. It returns when the node role has ended, with an
// error unless that ended with status 0. Called by node.Dispatch alone.
func Run(log logrus.FieldLogger) error {
	cfg, rt, err := effective()
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
	// Whatever covers a directory later, a working directory leads below the cover (/proc/PID/cwd).
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := os.Setenv(layout.EnvRole, layout.RoleNode); err != nil {
		return err
	}
	// RootlessKit's own reaper takes children from whoever waits for them: its port driver then finds no nft, for one, and
	// clients lose their addresses.
	defer deadchild.ReapOrphans(reapAfter)()
	return rkchild.Child(rkchild.Opt{
		PipeFDEnvKey:              layout.EnvPipeFD,
		RunActivationHelperEnvKey: layout.EnvActivationHelper,
		ChildUseActivationEnvKey:  layout.EnvChildActivation,
		StateDirEnvKey:            layout.EnvStateDir,
		TargetCmd:                 nodeCommand(cfg.Name),
		NetworkDriver:             nd,
		CopyUpDriver:              reporting{copyup.NewDriver(fileSystem(cfg, rt), log), layout.NewData(cfg.DataDir)},
		CopyUpDirs:                cfg.Mounts.CopyUp,
		PortDriver:                ports,
		MountProcfs:               true,
		Propagation:               cfg.Mounts.Propagation,
		// RootlessKit's name for it; what it does in the child is to mount cgroup2 over /sys/fs/cgroup. The evacuation
		// itself is the parent's, by cgroupv2.Subtree.Arrange.
		EvacuateCgroup2: true,
	})
}

// RunActivationHelper is RootlessKit's role that hands systemd's sockets on. Called by node.Dispatch alone.
func RunActivationHelper() error {
	cfg, _, err := effective()
	if err != nil {
		return err
	}
	return activation.ActivationHelper(activation.Opt{
		RunActivationHelperEnvKey: layout.EnvActivationHelper, TargetCmd: nodeCommand(cfg.Name),
	})
}

// effective reads the configuration that the parent wrote.
func effective() (*config.NodeConfig, layout.Runtime, error) {
	path := os.Getenv(layout.EnvConfig)
	if path == "" {
		return nil, layout.Runtime{}, fmt.Errorf("read the effective config: %s is not set", layout.EnvConfig)
	}
	cfg := &config.NodeConfig{}
	if err := layout.ReadJSON(path, cfg); err != nil {
		return nil, layout.Runtime{}, fmt.Errorf("read the effective config: %w", err)
	}
	return cfg, layout.Runtime{Dir: filepath.Dir(path)}, nil
}

// fileSystem is what the node's file system is to look like.
func fileSystem(cfg *config.NodeConfig, rt layout.Runtime) copyup.Spec {
	data := layout.NewData(cfg.DataDir)
	spec := copyup.Spec{
		CopyUp:  cfg.Mounts.CopyUp,
		Real:    copyup.DefaultReal(),
		Keep:    []string{rt.Dir, data.Dir, cfg.ComponentsDir, os.Getenv("HOME")},
		Persist: data.Inside(),
		// As on any host; it holds sockets, locks and state that mean nothing after a restart.
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
