package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/userunit"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func newRestart(a *app) *cobra.Command {
	var timeout time.Duration
	wait := waitFlag(status.MilestonePods)
	cmd := &cobra.Command{
		Use:   "restart [COMPONENT]",
		Short: "Restart the node, or one of its components",
		Long: `Without an argument, stop the node and start it again with the settings of the last
start, also a node that is not running, and wait until its pods are back. A node that
runs as a service is restarted by systemd.

With the name of a component, end it, so that the node starts it again, and wait until
it is ready. Pods continue to run.`,
		Example: `  rootlessnode restart
  rootlessnode restart kubelet`,
		Args: arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return restartNode(cmd.Context(), a, upOptions{wait: status.Milestone(wait), timeout: timeout})
			}
			if cmd.Flags().Changed("wait") {
				return errdefs.Config("--wait: must not be used with a component")
			}
			if timeout == 0 {
				timeout = componentLimit
			}
			return restartComponent(cmd.Context(), a, args[0], timeout)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			n, err := attached[statusNode](a)
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			if s, err := n.Status(cmd.Context()); err == nil {
				for _, c := range s.Components {
					if c.IsProgram() {
						names = append(names, c.Name)
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().Var(&wait, "wait", "what to wait for: node, usable or pods; see up")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait (default: timeouts.ready, for a component 2m)")
	return cmd
}

func restartComponent(ctx context.Context, a *app, name string, limit time.Duration) error {
	n, err := attached[attachedNode](a)
	if err != nil {
		return err
	}
	if err := checkRunning(ctx, a, n); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := a.restart(ctx, n, name); err != nil {
		return err
	}
	a.printf("%s was restarted and is ready\n", name)
	return nil
}

func restartNode(ctx context.Context, a *app, o upOptions) error {
	if isService(ctx, a) {
		if _, err := a.userSystemctl(ctx, "restart", userunit.Instance(a.name)); err != nil {
			return errdefs.Errorf("restart service %s: %w", userunit.Instance(a.name), err)
		}
		a.printf("service %s was restarted\n", userunit.Instance(a.name))
		return nil
	}
	var f nodeFlags // none is given
	f.register(&cobra.Command{})
	cfg, set, err := f.build(a) // before the stop, because it may not be valid any more
	if err != nil {
		return err
	}
	n, err := attached[stopper](a)
	if err != nil {
		return err
	}
	s, err := briefStatus(ctx, n)
	if err != nil {
		return err
	}
	if isRunning(s) {
		if err := stopNode(ctx, a, n, s, stopOptions{}); err != nil {
			return err
		}
	}
	return up(ctx, a, cfg, node.Options{Log: a.logger(), Detach: true, Settings: &set}, o)
}

// isService reports whether systemd runs the node as a service of install.
func isService(ctx context.Context, a *app) bool {
	// A service that is not Ready yet counts as well, for which is-active does not succeed.
	show, err := a.userSystemctl(ctx, "show", "--property=ActiveState", "--value", userunit.Instance(a.name))
	state := strings.TrimSpace(show)
	return err == nil && (state == "active" || state == "activating" || state == "reloading")
}
