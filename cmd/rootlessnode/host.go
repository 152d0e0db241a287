package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/hostsetup"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

func newHost(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:         "host",
		Short:       "Prepare this host for an account (root's part)",
		Args:        noCommand,
		Annotations: map[string]string{allowRoot: ""},
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newHostSetup(a), newHostEnter(a), newHostUndo(a))
	return cmd
}

func newHostSetup(a *app) *cobra.Command {
	var o hostsetup.Options
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Do what only root can do for an account's nodes",
		Long: `Do, once, what only root can do for an account's nodes: subordinate ids, a delegated
cgroup, kernel modules and settings, /dev/net/tun. Doing it again changes nothing.
Packages are named, not installed.`,
		Args:        arguments(0, 0),
		Annotations: map[string]string{allowRoot: ""},
		RunE: func(cmd *cobra.Command, _ []string) error {
			exe, err := ownPath()
			if err != nil {
				return err
			}
			o.Exe = exe
			return a.hostSetup(cmd.Context(), o, dryRun)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&o.User, "user", hostsetup.DefaultUser, "the account's `NAME`")
	fl.BoolVar(&o.CreateUser, "create-user", false, "make the account if there is none")
	fl.BoolVar(&dryRun, "dry-run", false, "print the shell lines that would do it")
	fl.Int64Var(&o.SubidCount, "subids", 0, "how many subordinate ids of each kind (default 65536)")
	fl.IntVar(&o.PortStart, "port-start", 0, "let all users bind ports from here on (0: as it is)")
	fl.StringVar(&o.LXCUserNIC, "lxc-user-nic", "", "let nodes with network.driver lxc-user-nic connect to `BRIDGE`")
	fl.Lookup("lxc-user-nic").NoOptDefVal = config.Default().Network.LXCBridge
	return cmd
}

func (a *app) hostSetup(ctx context.Context, o hostsetup.Options, dryRun bool) error {
	plan, err := hostsetup.NewPlan(o)
	if err != nil {
		return err
	}
	if dryRun {
		script, err := plan.Script()
		if err != nil {
			return err
		}
		a.printf("%s", script)
		return plan.Refused()
	}
	var notes []string
	err = plan.Run(ctx, func(r hostsetup.Result) {
		a.printf("%-*s  %s\n", outcomeColumn, r.Outcome, r.Step.Title)
		if r.Outcome == hostsetup.ByHand {
			for _, c := range r.Step.Commands {
				a.printf("%*s  %s\n", outcomeColumn, "", c)
			}
		}
		if r.Step.Note != "" && r.Outcome != hostsetup.Already {
			notes = append(notes, r.Step.Note)
		}
	})
	for _, n := range notes {
		a.printf("note: %s\n", n)
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
		Short: "Become the account and run rootlessnode as it",
		Long: `For hosts without systemd: root puts itself into the account's delegated cgroup,
becomes the account with a clean environment, and executes rootlessnode with the
given arguments. With --command they are a program of their own and its arguments:
a shell in which "rootlessnode up" works, or a CI job. Under systemd no cgroup is
entered: the account's user manager gives the node one.`,
		Example: `  rootlessnode host enter --user alice -- up
  rootlessnode host enter --user alice --command -- bash -l`,
		Args:        arguments(1, -1),
		Annotations: map[string]string{allowRoot: ""},
		RunE: func(_ *cobra.Command, args []string) error {
			exe, err := ownPath()
			if err != nil {
				return err
			}
			o.Exe, o.Args = exe, args
			if command {
				if o.Exe, err = exec.LookPath(args[0]); err != nil {
					return errdefs.Class(errdefs.ErrConfig, fmt.Errorf("find the command: %w", err))
				}
				o.Args = args[1:]
			}
			o.Env = a.enterEnv()
			code, err := a.enter(o)
			if err == nil && code != 0 {
				return exitCode(code)
			}
			return err
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().BoolVar(&command, "command", false, "execute ARG... itself, not rootlessnode")
	cmd.Flags().StringVar(&o.User, "user", hostsetup.DefaultUser, "the account's `NAME`")
	return cmd
}

// enterEnv is the environment of this process with the bootstrap token, which it does not hold any more (takeToken): the
// command that is entered is the one that needs it.
func (a *app) enterEnv() []string {
	env := os.Environ()
	if a.joinToken != "" {
		env = append(env, layout.EnvJoinToken+"="+a.joinToken)
	}
	return env
}

func newHostUndo(a *app) *cobra.Command {
	var o hostsetup.Options
	cmd := &cobra.Command{
		Use:         "undo",
		Short:       "Take back what host setup did",
		Args:        arguments(0, 0),
		Annotations: map[string]string{allowRoot: ""},
		RunE: func(cmd *cobra.Command, _ []string) error {
			exe, err := ownPath() // without it no step has written it anywhere
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
	cmd.Flags().StringVar(&o.User, "user", hostsetup.DefaultUser, "the account's `NAME`")
	return cmd
}

// ownPath is this program's absolute path, without links.
func ownPath() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the path of this program: %w", err)
	}
	return filepath.EvalSymlinks(exe)
}
