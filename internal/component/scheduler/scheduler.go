// Package scheduler renders the embedded kube-scheduler: one instance without leader election, on loopback.
//
// Runs in: child side. It only renders; Ready's check makes one request.
package scheduler

import (
	"context"
	"fmt"
	"slices"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// Name of the component.
const Name = "kube-scheduler"

const (
	certificate = "scheduler"
	user        = "system:" + Name
)

// Component returns the scheduler's entry in the catalogue.
func Component() component.Component {
	return component.Component{
		Name: Name, Enabled: component.EmbeddedControlPlane, Programs: []string{Name}, Bindings: []string{user},
		VersionSkew: component.ControlVersionSkew,
		Ports: func(c *config.NodeConfig) []component.Port {
			return []component.Port{component.LoopbackPort(c.Inside.SchedulerPort, "inside.schedulerPort")}
		},
		Certificates: []component.Certificate{pki.Local(certificate, pki.ClusterCA, user)},
		Needs:        func(component.Env) []supervisor.Need { return component.NeedReady(component.UnitRoles) },
		Render:       Render, Ready: Ready,
	}
}

// The part of KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1) that is set here.
type schedulerConfiguration struct {
	component.TypeMeta `json:",inline"`
	ClientConnection   clientConnection `json:"clientConnection"`
	LeaderElection     leaderElection   `json:"leaderElection"`
	EnableProfiling    bool             `json:"enableProfiling"`
}

type clientConnection struct {
	Kubeconfig string  `json:"kubeconfig"`
	QPS        float32 `json:"qps"`
	Burst      int32   `json:"burst"`
}

type leaderElection struct {
	LeaderElect bool `json:"leaderElect"`
}

// Render returns the scheduler's configuration, kubeconfig and arguments.
func Render(e component.Env) (component.Rendered, error) {
	kubeconfig, err := pki.FileKubeconfig(certificate, e.APIServerURL, apiserver.ClusterName(e))
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	kubeconfigFile, configFile := component.RunFile("scheduler.kubeconfig"), component.RunFile("scheduler.yaml")
	cp := e.Config.ControlPlane
	settings, err := component.YAML(schedulerConfiguration{
		TypeMeta:         component.TypeMeta{APIVersion: "kubescheduler.config.k8s.io/v1", Kind: "KubeSchedulerConfiguration"},
		ClientConnection: clientConnection{Kubeconfig: kubeconfigFile, QPS: float32(cp.ClientQPS), Burst: int32(cp.ClientBurst)},
	})
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	args := slices.Concat(
		[]string{component.Flag("config", configFile)},
		pki.LoopbackFlags(certificate, kubeconfigFile, e.Config.Inside.SchedulerPort),
		[]string{component.IntFlag("v", component.Verbosity(e.Config.LogLevel))},
	)
	return component.Rendered{
		Name: Name,
		Files: []component.File{
			{Path: kubeconfigFile, Mode: 0o600, Data: kubeconfig},
			{Path: configFile, Mode: 0o600, Data: settings},
		},
		Path: e.BinDir(Name),
		Args: append(args, cp.SchedulerExtraArgs...),
	}, nil
}

// Ready returns a check that requests healthz.
func Ready(e component.Env) func(context.Context) error {
	return pki.LoopbackProbe(e.Config.Inside.SchedulerPort).Check
}
