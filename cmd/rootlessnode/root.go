package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/nodeexec"
)

// allowRoot annotates commands that make sense for root.
const allowRoot = "allow-root"

// exitCode is an error that says nothing more: the command has told all, or another program has.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// run is the whole program for the given arguments.
func run(a *app, args []string) int {
	a.takeToken()
	root := newRoot(a)
	root.SetArgs(append([]string{}, args...)) // nil would mean those of the process
	err := root.ExecuteContext(context.Background())
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	if err != nil {
		a.printError(err)
	}
	var start *nodeexec.StartError
	if errors.As(err, &start) {
		return start.Code
	}
	var here *mountns.StartError
	if errors.As(err, &here) {
		return here.Code
	}
	return errdefs.ExitCode(err)
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "rootlessnode",
		Short: "Run a Kubernetes node as an ordinary user",
		Long: `rootlessnode turns an ordinary account into a Kubernetes node. With no cluster
given it brings its own control plane: "rootlessnode up" ends with a cluster
of one node, every process of it unprivileged.`,
		Example: `  rootlessnode up
  rootlessnode kubectl get nodes
  rootlessnode shell
  rootlessnode down`,
		Version:          node.Version,
		SilenceErrors:    true,
		SilenceUsage:     true,
		TraverseChildren: true,
		// How many letters a mistyped command may be away from a suggested one.
		SuggestionsMinimumDistance: 2,
		Args:                       noCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Annotations:                map[string]string{allowRoot: ""},
		PersistentPreRunE:          func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) },
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	name := a.env(layout.EnvName)
	if name == "" {
		name = config.DefaultName
	}
	root.PersistentFlags().StringVar(&a.name, "name", name, "the node, of several of one account (or "+layout.EnvName+")")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return errdefs.WithHintf(errdefs.Class(errdefs.ErrConfig, err), "%s --help", cmd.CommandPath())
	})
	root.AddGroup(
		&cobra.Group{ID: groupNode, Title: "The node:"}, &cobra.Group{ID: groupUse, Title: "Using it:"},
		&cobra.Group{ID: groupLook, Title: "Looking into it:"}, &cobra.Group{ID: groupSetup, Title: "Setting up:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupNode, newUp(a), newDown(a), newStatus(a), newToken(a), newLeave(a))
	add(groupUse, newKubectl(a), newKubeconfig(a), newExec(a), newShell(a), newImages(a), newPorts(a), newMounts(a))
	add(groupLook, newTop(a), newEvents(a), newLogs(a), newCheck(a))
	add(groupSetup, newInstall(a), newUninstall(a), newConfig(a), newHost(a), newManifests(a), newMountNS(a), newVersion(a))
	root.SetHelpCommandGroupID(groupSetup)
	root.SetCompletionCommandGroupID(groupSetup)
	allowGenerated(root)
	return root
}

// Groups of commands in the help.
const (
	groupNode  = "node"
	groupUse   = "use"
	groupLook  = "look"
	groupSetup = "setup"
)

// allowGenerated lets root use what cobra adds by itself: help and shell completion are of no node.
func allowGenerated(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var allow func(*cobra.Command)
	allow = func(c *cobra.Command) {
		c.Annotations = map[string]string{allowRoot: ""}
		for _, sub := range c.Commands() {
			allow(sub)
		}
	}
	for _, c := range root.Commands() {
		if c.Name() == "help" || c.Name() == "completion" {
			allow(c)
		}
	}
}

// prepare is what every command does first.
func (a *app) prepare(cmd *cobra.Command) error {
	if a.output != "" && a.output != "json" {
		err := fmt.Errorf("output format %q is not known", a.output)
		a.output = ""
		return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err), "-o json, or nothing for people")
	}
	if _, ok := cmd.Annotations[allowRoot]; ok || a.uid != 0 {
		return nil
	}
	err, hint := errors.New("run as an ordinary user: a rootless node is not for root"), a.rootHint()
	if a.inUserNS() {
		err = errors.New("run as an ordinary user: uid 0 is root here too, that of another user namespace")
		hint = "leave that user namespace (unshare, a rootless container, a node's own shell)," +
			"\nor in a container with ids enough for an account of its own:\n" + hint
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, err), hint)
}

// rootHint is the way for root: the account that was set up, or to set one up.
func (a *app) rootHint() string {
	const account = "rootlessnode"
	if _, err := user.Lookup(account); err == nil {
		return "rootlessnode host enter --user " + account + " -- up"
	}
	return "rootlessnode host setup --user " + account + " --create-user\nrootlessnode host enter --user " + account + " -- up"
}

// outputFlag adds -o to a command.
func (a *app) outputFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.output, "output", "o", "", "json for programs")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// suggestionDistance is how many letters a mistyped command may be away from a suggested one.
const suggestionDistance = 2

func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := cmd.CommandPath() + " --help"
	cmd.SuggestionsMinimumDistance = suggestionDistance
	for _, s := range cmd.SuggestionsFor(args[0]) {
		hint = "did you mean " + s + "?\n" + hint
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("unknown command %q for %s", args[0], cmd.CommandPath())), hint)
}

// arguments checks how many arguments a command got. most < 0: any number.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		err := fmt.Errorf("%s: %d arguments are given, it takes %s", cmd.CommandPath(), len(args), count(least, most))
		return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err), cmd.UseLine())
	}
}

func count(least, most int) string {
	switch {
	case most < 0:
		return fmt.Sprintf("at least %d", least)
	case most == 0:
		return "none"
	case least == most:
		return fmt.Sprint(least)
	}
	return fmt.Sprintf("%d to %d", least, most)
}
