package main

import (
	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/resources"
)

func newManifests(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:         "manifests",
		Short:       "Print Kubernetes manifests for other clusters",
		Annotations: map[string]string{allowRoot: "true"},
	}, newJoinRBAC(a))
}

func newJoinRBAC(a *app) *cobra.Command {
	policies := false
	rbac := &cobra.Command{
		Use:   "join-rbac",
		Short: "Print the RBAC rules with which rootlessnode nodes can join a cluster",
		Long: `Print the RBAC rules that a cluster with another control plane needs so that
rootlessnode nodes can join it: the permissions of bootstrap tokens of the group
system:bootstrappers:rootlessnode, and of nodes. An administrator of the cluster
reviews and applies them once. docs/joining.md explains each of them.`,
		Example: `  rootlessnode manifests join-rbac | kubectl apply -f -`,
		RunE: func(*cobra.Command, []string) error {
			const foreign = true
			cfg := config.Default()
			if policies {
				cfg.NetworkPolicy = config.NetworkPolicyKube
			}
			text, err := resources.JoinRBAC(cfg, foreign)
			if err != nil {
				return err
			}
			_, err = a.out.Write(text)
			return err
		},
	}
	rbac.Flags().BoolVar(&policies, "network-policy", false,
		"also print the rules for nodes with networkPolicy: kube-network-policies, which allow nodes to read all pods")
	return rbac
}
