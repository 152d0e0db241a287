package main

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"

	rkchild "github.com/rootless-containers/rootlesskit/v3/pkg/child"
	"github.com/rootless-containers/rootlesskit/v3/pkg/copyup/tmpfssymlink"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/slirp4netns"
	rkparent "github.com/rootless-containers/rootlesskit/v3/pkg/parent"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
)

// Values of RootlessKit's command line.
const (
	envStateDir = "ROOTLESSKIT_STATE_DIR"
	propagation = "rprivate"
)

// kitParent runs RootlessKit's parent with the port driver of a node, but without the other parts of a node.
func kitParent(stateDir string) error {
	c := config.Default().Network
	_, ipnet, err := net.ParseCIDR(c.CIDR)
	if err != nil {
		return err
	}
	if err := os.Mkdir(stateDir, 0o700); err != nil {
		return err
	}
	network, err := slirp4netns.NewParentDriver(os.Stderr, config.DriverSlirp, c.MTU, ipnet, "tap0", true, "", false, false, false)
	if err != nil {
		return err
	}
	ports, err := portdriver.New(portdriver.Options{Log: io.Discard, StateDir: stateDir}) // it would log every connection, because nothing answers inside
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the parent death signal of a child is bound to the thread, see prctl(2)
	return rkparent.Parent(rkparent.Opt{
		PipeFDEnvKey: layout.EnvPipeFD, ChildUseActivationEnvKey: layout.EnvChildActivation, StateDir: stateDir,
		StateDirEnvKey: envStateDir, NetworkDriver: network, PortDriver: ports, CreatePIDNS: true, Propagation: propagation,
		SubidSource: rkparent.SubidSourceAuto,
	})
}

// kitChild runs RootlessKit's child for kitParent.
func kitChild() error {
	return rkchild.Child(rkchild.Opt{
		PipeFDEnvKey: layout.EnvPipeFD, ChildUseActivationEnvKey: layout.EnvChildActivation, StateDirEnvKey: envStateDir,
		TargetCmd: []string{"/proc/self/exe", roleInside}, NetworkDriver: slirp4netns.NewChildDriver(),
		PortDriver: portdriver.NewChild(os.Stderr), MountProcfs: true, Reaper: true, Propagation: propagation,
		CopyUpDriver: tmpfssymlink.NewChildDriver(), CopyUpDirs: []string{"/etc", "/run"},
	})
}

// kit returns the command that starts the inside role, with a node's port driver, or with RootlessKit's command line and its port driver.
func (o options) kit(ctx context.Context, stateDir string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if o.rootlesskit == "" {
		return exec.CommandContext(ctx, self, roleKit, stateDir), nil
	}
	return exec.CommandContext(ctx, o.rootlesskit, "--net=slirp4netns", "--mtu=1500", "--disable-host-loopback", "--port-driver=builtin",
		"--copy-up=/etc", "--copy-up=/run", "--pidns", "--state-dir="+stateDir, self, roleInside), nil
}
