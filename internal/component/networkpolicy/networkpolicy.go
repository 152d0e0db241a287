// Package networkpolicy renders kube-network-policies, which enforces NetworkPolicies for the pods of the node.
//
// Runs in: child side. It only renders; Ready's check makes one request.
package networkpolicy

import (
	"context"
	_ "embed" // the manifests
	"fmt"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
)

// Name of the component and of its program.
const Name = "kube-network-policies"

const (
	certificate = "network-policy"
	user        = "rootlessnode:network-policy"
)

var (
	//go:embed rbac.yaml
	rbac string
	//go:embed worker.yaml
	workerRBAC string
)

// Component returns the entry of kube-network-policies in the catalogue.
func Component() component.Component {
	return component.Component{
		Name: Name, Programs: []string{Name}, FiltersPackets: true, OutlivesPods: true,
		Enabled: func(c *config.NodeConfig) bool { return c.NetworkPolicy == config.NetworkPolicyKube },
		Ports: func(c *config.NodeConfig) []component.Port {
			return []component.Port{component.LoopbackPort(c.Inside.NetworkPolicyPort, "inside.networkPolicyPort")}
		},
		Certificates: []component.Certificate{pki.Client(certificate, pki.ClusterCA, user)},
		Manifest:     func(component.Env) ([]byte, error) { return []byte(rbac), nil },
		Worker: component.Worker{
			Reads:    []kubeapi.Resource{{Name: "pods"}, {Name: "namespaces"}, {Group: "networking.k8s.io", Name: "networkpolicies"}},
			Manifest: workerRBAC,
		},
		Needs:  component.NeedCluster,
		Render: Render, Ready: Ready,
	}
}

// queueID is the NFQUEUE in the node's network namespace for packets that wait for a decision. It is the default of
// kube-network-policies.
const queueID = 100

// Render returns the kubeconfig and arguments. The component may start when its user can read policies; it does not
// need flannel's lease.
//
// The component fails closed: while it does not run, new connections from and to pods with a policy are blocked, and
// established connections continue. A crash must not disable policies, and the supervisor restarts the component within
// a second.
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
			component.Flag("hostname-override", e.Config.NodeName),
			component.Flag("metrics-bind-address", component.LoopbackAddress(e.Config.Inside.NetworkPolicyPort)),
			component.IntFlag("nfqueue-id", queueID),
			component.IntFlag("v", component.Verbosity(e.Config.LogLevel)),
		},
	}, nil
}

// Ready returns a check that policies are enforced: they are loaded, the packet filter rules exist, and the queue has a
// reader.
func Ready(e component.Env) func(context.Context) error {
	return component.Probe{
		URL: "http://" + component.LoopbackAddress(e.Config.Inside.NetworkPolicyPort) + "/readyz",
	}.Check
}
