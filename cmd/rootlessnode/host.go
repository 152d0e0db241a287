package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/hostsetup"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func newHost(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:         "host",
		Short:       "Prepare this host for an account (requires root)",
		Annotations: map[string]string{allowRoot: "true"},
	}, newHostSetup(a), newHostEnter(a), newHostUndo(a))
}

// setupOptions are the flags of host setup.
type setupOptions struct {
	hostsetup.Options
	dryRun bool
}

func newHostSetup(a *app) *cobra.Command {
	var o setupOptions
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Set up what only root can for an account's nodes",
		Long: `Set up, once, what only root can for an account's nodes: subordinate ids, a delegated
cgroup, kernel modules and settings, /dev/net/tun. Running it again changes nothing.
Missing packages are listed, not installed.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			exe, err := ownPath()
			if err != nil {
				return err
			}
			o.Exe = exe
			return hostSetup(cmd.Context(), a, o)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&o.User, "user", hostsetup.DefaultUser, "`NAME` of the account")
	fl.BoolVar(&o.CreateUser, "create-user", false, "create the account if it does not exist")
	fl.BoolVar(&o.dryRun, "dry-run", false, "print the shell commands instead of running them")
	fl.Int64Var(&o.SubidCount, "subids", 0, "number of subordinate ids of each kind (default 65536)")
	fl.IntVar(&o.PortStart, "port-start", 0, "allow all users to bind ports from this one on (0: do not change)")
	fl.StringVar(&o.LXCUserNIC, "lxc-user-nic", "", "allow nodes with network.driver lxc-user-nic to connect to `BRIDGE`")
	fl.Lookup("lxc-user-nic").NoOptDefVal = "lxcbr0" // the default of network.lxcBridge
	return cmd
}

func hostSetup(ctx context.Context, a *app, o setupOptions) error {
	plan, err := hostsetup.NewPlan(o.Options)
	if err != nil {
		return err
	}
	if o.dryRun {
		script, err := plan.Script()
		if err != nil {
			return err
		}
		a.printf("%s", script)
		return plan.Refused()
	}
	var notes []errdefs.Hint
	err = plan.Run(ctx, func(r hostsetup.Result) {
		a.printf("%-*s  %s\n", outcomeColumn, r.Outcome, r.Step.Title)
		if r.Outcome == hostsetup.Manual {
			for _, c := range r.Step.Commands {
				a.printf("%*s  %s\n", outcomeColumn, "", c)
			}
		}
		if len(r.Step.Note) > 0 && r.Outcome != hostsetup.Already {
			notes = append(notes, r.Step.Note)
		}
	})
	for _, n := range notes {
		a.printf("note: %s\n", strings.TrimPrefix(n.Render(a.commandOf), "# "))
	}
	return err
}

// outcomeColumn fits the longest outcome.
const outcomeColumn = len(hostsetup.Already)

func newHostEnter(a *app) *cobra.Command {
	var o hostsetup.EnterOptions
	var command bool
	cmd := &cobra.Command{
		Use:   "enter [flags] -- ARG...",
		Short: "Run rootlessnode as the account",
		Long: `For hosts without systemd: as root, enter the account's delegated cgroup, switch to
the account with a clean environment, and execute rootlessnode with the given
arguments. With --command the arguments are another program and its arguments, such as
a shell in which "rootlessnode up" works, or a CI job. Under systemd no cgroup is
entered, because the account's user manager delegates one to the node.`,
		Example: `  rootlessnode host enter --user alice -- up
  rootlessnode host enter --user alice --command -- bash -l`,
		Args:        arguments(1, -1),
		Annotations: map[string]string{runsSelf: "command"},
		RunE: func(_ *cobra.Command, args []string) error {
			exe, err := ownPath()
			if err != nil {
				return err
			}
			o.Exe, o.Args = exe, args
			if command {
				if o.Exe, err = exec.LookPath(args[0]); err != nil {
					return errdefs.Config("find command: %w", err)
				}
				o.Args = args[1:]
			}
			o.Env = os.Environ()
			if a.joinToken != "" { // takeToken removed it, but the entered command needs it
				o.Env = append(o.Env, layout.EnvJoinToken+"="+a.joinToken)
			}
			code, err := a.enter(o)
			if err == nil && code != 0 {
				return exitCode(code)
			}
			return err
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().BoolVar(&command, "command", false, "execute ARG... instead of rootlessnode")
	cmd.Flags().StringVar(&o.User, "user", hostsetup.DefaultUser, "`NAME` of the account")
	return cmd
}

func newHostUndo(a *app) *cobra.Command {
	var o hostsetup.Options
	cmd := &cobra.Command{
		Use:   "undo",
		Short: "Undo the changes of host setup",
		RunE: func(cmd *cobra.Command, _ []string) error {
			exe, err := ownPath() // the path that host setup wrote into its files
			if err != nil {
				return err
			}
			o.Exe = exe
			plan, err := hostsetup.NewPlan(o)
			if err != nil {
				return err
			}
			return plan.Undo(cmd.Context(), func(r hostsetup.Result) {
				if r.Outcome != hostsetup.Already {
					a.printf("%-*s  %s\n", outcomeColumn, r.Outcome, r.Step.Title)
				}
			})
		},
	}
	cmd.Flags().StringVar(&o.User, "user", hostsetup.DefaultUser, "`NAME` of the account")
	return cmd
}

// ownPath returns this program's absolute path with symbolic links resolved.
func ownPath() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the path of this program: %w", err)
	}
	return filepath.EvalSymlinks(exe)
}
