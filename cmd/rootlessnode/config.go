package main

import (
	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

func newConfig(a *app) *cobra.Command {
	return group(&cobra.Command{Use: "config", Short: "Print the default or the effective configuration"}, newConfigDefault(a), newConfigEffective(a))
}

func newConfigDefault(a *app) *cobra.Command {
	return &cobra.Command{
		Use:         "default",
		Short:       "Print every field with its meaning and default value",
		Annotations: map[string]string{allowRoot: "true"},
		RunE: func(*cobra.Command, []string) error {
			_, err := a.out.Write(config.Sample())
			return err
		},
	}
}

func newConfigEffective(a *app) *cobra.Command {
	var f nodeFlags
	cmd := &cobra.Command{
		Use:   "effective",
		Short: "Print the configuration after defaults and flags",
		Long: `Print the configuration after defaults and flags are applied: that of the running
node or, with flags, the configuration that "rootlessnode up" would use with them.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := a.selectNode(&f)
			if err != nil {
				return err
			}
			b, err := config.Marshal(n.Config())
			if err != nil {
				return err
			}
			_, err = a.out.Write(b)
			return err
		},
	}
	f.register(cmd)
	return cmd
}

// selectNode returns the node that the flags describe or, if no flag is given, the existing node.
func (a *app) selectNode(f *nodeFlags) (handle, error) {
	if !f.given() {
		return attached[handle](a)
	}
	cfg, err := f.build(a.name)
	if err != nil {
		return nil, err
	}
	return a.newNode(cfg, node.Options{Log: a.logger()})
}
