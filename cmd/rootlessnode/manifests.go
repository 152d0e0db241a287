package main

import (
	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/pkg/component/resources"
)

func newManifests(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:         "manifests",
		Short:       "Print Kubernetes objects for clusters that are not ours",
		Args:        noCommand,
		Annotations: map[string]string{allowRoot: ""},
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	policies := false
	rbac := &cobra.Command{
		Use:   "join-rbac",
		Short: "Print what a cluster needs so that nodes of ours can join it",
		Long: `Print what a cluster with another control plane needs so that nodes of ours can
join it: the rights of bootstrap tokens of the group
system:bootstrappers:rootlessnode and of nodes. Its administrator reads and applies
it once. docs/joining.md says why each is there.`,
		Example:     `  rootlessnode manifests join-rbac | kubectl apply -f -`,
		Args:        arguments(0, 0),
		Annotations: map[string]string{allowRoot: ""},
		RunE: func(*cobra.Command, []string) error {
			const foreign = true
			text, err := resources.JoinRBAC(foreign, policies)
			if err != nil {
				return err
			}
			_, err = a.out.Write(text)
			return err
		},
	}
	rbac.Flags().BoolVar(&policies, "network-policy", false,
		"also what nodes with networkPolicy: kube-network-policies need; by it nodes may read all pods")
	cmd.AddCommand(rbac)
	return cmd
}
