// Package networkpolicy renders kube-network-policies, which enforces NetworkPolicies for the pods of the node.
//
// Runs in: child side. It renders; Ready's check makes one request.
package networkpolicy

import (
	"context"
	"fmt"

	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/component/pki"
)

// Name of the component and of its file.
const Name = "kube-network-policies"

// queueID is the NFQUEUE of the node's network namespace that packets wait in. It is upstream's.
const queueID = 100

// Render returns the kubeconfig and arguments. It may be started once the API server lets its user read; it needs no lease.
//
// It fails closed: while it does not run, no new connection from or to a pod with a policy is made, and what is established
// goes on. A policy is a promise that a crash must not break, and the supervisor starts it again within a second.
func Render(e component.Env) (component.Rendered, error) {
	kubeconfigFile := component.RunFile(Name + ".kubeconfig")
	kubeconfig, err := pki.ClientKubeconfig(e, pki.NetworkPolicy)
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

// Ready asks whether policies are enforced: they are known, the rules are there, and the queue has a reader.
func Ready(e component.Env) func(context.Context) error {
	return component.Probe{
		URL: "http://" + component.LoopbackAddress(e.Config.Inside.NetworkPolicyPort) + "/readyz",
	}.Check
}
