package parent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	rkchild "github.com/rootless-containers/rootlesskit/v3/pkg/child"
	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/pasta"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/slirp4netns"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	slirpports "github.com/rootless-containers/rootlesskit/v3/pkg/port/slirp4netns"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// The test binary runs all roles of a node. Its child fails in the phase that the test selects.
const (
	envFault  = "ROOTLESSNODE_TEST_FAULT"
	envConfig = "ROOTLESSNODE_TEST_CONFIG"
)

func TestMain(m *testing.M) {
	log := logrus.New()
	var err error
	role, rt := layout.TakeRole()
	switch {
	case role == layout.RoleChild:
		err = playChild(os.Getenv(envFault), rt)
	case role == layout.RoleGuard:
		err = RunGuard(log, rt)
	case role == layout.RoleNode:
		err = playNode(os.Getenv(envFault), rt)
	case role == layout.RoleParent:
		err = playParent(log, rt)
	case os.Getenv(envInside) != "":
		err = playInside()
	case os.Getenv(envPair) != "":
		os.Exit(m.Run()) // no check for goroutine leaks, because the gvisor network cannot be stopped
	default:
		testutil.QuickChildren()
		goleak.VerifyTestMain(m)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
	}
	os.Exit(errdefs.ExitCode(err))
}

func playParent(log *logrus.Logger, rt layout.Runtime) error {
	var cfg config.NodeConfig
	if err := json.Unmarshal([]byte(os.Getenv(envConfig)), &cfg); err != nil {
		return err
	}
	return Run(context.Background(), Options{Config: &cfg, Runtime: rt, Log: log})
}

// playNode runs a node role that only creates the node socket and exits at SIGTERM.
func playNode(fault string, rt layout.Runtime) error {
	if fault == "target" {
		return errors.New("the node role fails immediately")
	}
	if fault == "report" {
		return errors.Join(layout.WriteJSON(rt.Failure(), insideReport()), errors.New("the parent must use the report"))
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	if fault == "slow" { // still starting and does not handle signals
		signal.Ignore(syscall.SIGTERM)
		<-term
	}
	if err := os.WriteFile(rt.NodeSocket(), nil, 0o600); err != nil {
		return err
	}
	<-term
	if fault == "stubborn" {
		<-term
	}
	return nil
}

// insideReport is the report of the node role with the fault "report".
func insideReport() *errdefs.Report {
	return errdefs.ReportOf(errdefs.WithLog(errdefs.Preflight("etcd: no space").Hint("df"), "etcd", "/etcd.log", []string{"full"}))
}

// playChild runs the child role. It fails in the phase that fault names.
func playChild(fault string, rt layout.Runtime) error {
	capable := os.Getuid() == 0 && os.Getenv("HOME") != "" && mapped()
	if fault == "hello" || fault == "idmap" && capable {
		return fmt.Errorf("fails in phase %s", fault)
	}
	if os.Getuid() == 0 { // otherwise RootlessKit executes the child again
		if err := layout.SetRole(layout.RoleNode, rt); err != nil {
			return err
		}
	}
	return rkchild.Child(rkchild.Opt{
		PipeFDEnvKey: layout.EnvPipeFD, ChildUseActivationEnvKey: layout.EnvChildActivation, StateDirEnvKey: layout.EnvStateDir,
		TargetCmd: []string{"/proc/self/exe"}, NetworkDriver: faultyNetwork{playedNetwork(), fault},
		CopyUpDriver: faultyCopyUp{fault}, CopyUpDirs: []string{"/etc"}, PortDriver: playedPorts(),
		MountProcfs: true, Propagation: "rslave", Reaper: true, EvacuateCgroup2: true,
	})
}

// playedConfig returns the config of the test.
func playedConfig() config.NodeConfig {
	var cfg config.NodeConfig
	_ = json.Unmarshal([]byte(os.Getenv(envConfig)), &cfg) // the parent has read it too
	return cfg
}

// playedNetwork returns the child's network driver for the config of the test.
func playedNetwork() network.ChildDriver {
	if playedConfig().Network.Driver == config.DriverPasta {
		return pasta.NewChildDriver()
	}
	return slirp4netns.NewChildDriver()
}

// playedPorts returns the child's port driver for the config of the test.
func playedPorts() port.ChildDriver {
	if playedConfig().Ports.Driver == config.DriverSlirp {
		return slirpports.NewChildDriver()
	}
	return portdriver.NewChild(os.Stderr)
}

// mapped reports whether the user namespace of this process has an id map.
func mapped() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && len(b) > 0
}

type faultyNetwork struct {
	network.ChildDriver
	fault string
}

func (f faultyNetwork) ConfigureNetworkChild(m *messages.ParentInitNetworkDriverCompleted, netns string) (string, error) {
	if f.fault == "network" {
		return "", errors.New("fails in phase network")
	}
	return f.ChildDriver.ConfigureNetworkChild(m, netns)
}

type faultyCopyUp struct{ fault string }

func (f faultyCopyUp) CopyUp([]string) ([]string, error) {
	if f.fault == "copyup" {
		return nil, errors.New("fails in phase copyup")
	}
	return nil, nil
}
