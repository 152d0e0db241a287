// Package storage renders storage-provisioner, which creates PersistentVolumes in directories of the node, and the default
// StorageClass of the cluster.
//
// Runs in: child side. It only renders; Ready's check makes one request.
package storage

import (
	"context"
	_ "embed" // the manifest
	"fmt"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Name of the component and of its program.
const Name = "storage-provisioner"

// The StorageClass that the program creates, and its provisioner.
const (
	Class       = "rootlessnode"
	Provisioner = "rootlessnode.dev/local"
)

const (
	certificate = Name
	user        = "rootlessnode:storage-provisioner"
)

//go:embed rbac.yaml
var rbac string

// Component returns the entry of storage-provisioner in the catalogue. Workers have none: it may write all volumes of the cluster,
// which no node should be able to do with its own certificate.
func Component() component.Component {
	return component.Component{
		Name: Name, Programs: []string{Name}, Enabled: enabled,
		Ports: func(c *config.NodeConfig) []component.Port {
			return []component.Port{component.LoopbackPort(c.Inside.StoragePort, "inside.storagePort")}
		},
		Certificates: []component.Certificate{pki.Client(certificate, pki.ClusterCA, user)},
		Manifest:     func(component.Env) ([]byte, error) { return []byte(rbac), nil },
		Needs:        component.NeedCluster,
		Render:       Render, Ready: Ready,
	}
}

func enabled(c *config.NodeConfig) bool {
	return component.EmbeddedControlPlane(c) && c.Storage == config.StorageLocal
}

// Render returns the kubeconfig and arguments.
func Render(e component.Env) (component.Rendered, error) {
	kubeconfigFile := component.RunFile(Name + ".kubeconfig")
	kubeconfig, err := pki.ClientKubeconfig(e, certificate)
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	return component.Rendered{
		Name:  Name,
		Files: []component.File{{Path: kubeconfigFile, Mode: 0o600, Data: kubeconfig}},
		Path:  e.BinDir(Name),
		Args: []string{
			component.Flag("kubeconfig", kubeconfigFile),
			component.Flag("node-name", e.Config.NodeName),
			component.Flag("node-label", component.LabelVolumes+"="+component.VolumesHere),
			component.Flag("dir", layout.InsideVolumes),
			component.Flag("bind-address", component.LoopbackAddress(e.Config.Inside.StoragePort)),
			component.IntFlag("v", component.Verbosity(e.Config.LogLevel)),
		},
	}, nil
}

// Ready returns a check that the StorageClass exists and claims are served.
func Ready(e component.Env) func(context.Context) error {
	return component.Probe{
		URL: "http://" + component.LoopbackAddress(e.Config.Inside.StoragePort) + "/readyz",
	}.Check
}
