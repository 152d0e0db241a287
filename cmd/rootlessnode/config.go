package main

import (
	"context"

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
		Short: "Print the configuration after defaults, file and flags",
		Long: `Print the configuration after defaults, configuration file and flags are applied: that
of the running node or, if it is stopped or with flags, the configuration that
"rootlessnode up" would use. A comment shows where a value comes from: the file, a flag,
or one of them at the last start ("remembered").`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, set, err := a.selectNode(cmd.Context(), &f)
			if err != nil {
				return err
			}
			cfg, origins := n.Config(), set.Origins()
			b, err := config.MarshalWithOrigins(cfg, origins)
			if err != nil {
				return err
			}
			a.show(effectiveConfig{cfg, origins}, string(b))
			return nil
		},
	}
	f.register(cmd)
	return a.withOutput(cmd)
}

// effectiveConfig is the output of config effective as JSON.
type effectiveConfig struct {
	Config  *config.NodeConfig       `json:"config"`
	Origins map[string]config.Origin `json:"origins"`
}

// selectNode returns the running node or, if flags are given or it is not running, the node as `up` would start it. set are the
// settings of that start.
func (a *app) selectNode(ctx context.Context, f *nodeFlags) (n handle, set config.Settings, err error) {
	if f.given() {
		return a.nextNode(f)
	}
	running, err := attached[attachedNode](a)
	if err != nil {
		return nil, set, err
	}
	if s, err := running.Status(ctx); err != nil || s.ParentPID == 0 {
		return a.nextNode(f)
	}
	if last := a.lastSettings(a.name, running.Config().DataDir); last != nil {
		set = *last
	}
	return running, set, nil
}

// nextNode returns the node as `up` with these flags would start it.
func (a *app) nextNode(f *nodeFlags) (n handle, set config.Settings, err error) {
	cfg, set, err := f.build(a)
	if err != nil {
		return nil, set, err
	}
	n, err = a.newNode(cfg, node.Options{Log: a.logger(), Settings: &set})
	return n, set, err
}

// attachedNode is the part of node.Node that has its configuration and its status.
type attachedNode interface {
	handle
	statusNode
}

var _ attachedNode = (*node.Node)(nil)
