package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

// Annotations of commands.
const (
	// allowRoot: root may run the command and those below it.
	allowRoot = "allow-root"
	// printsHelp: the command only prints its help.
	printsHelp = "prints-help"
)

// exitCode is an error that is not printed, because the command or another program has already reported it.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// run executes the command line with the given arguments and returns the exit code.
func run(a *app, args []string) int {
	a.takeToken()
	root := newRoot(a)
	root.SetArgs(append([]string{}, args...)) // cobra replaces nil by the arguments of the process
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
		Long: `rootlessnode runs a Kubernetes node as an ordinary user. Unless it joins another
cluster, the node has its own control plane: "rootlessnode up" starts a cluster of one
node in which every process is unprivileged.`,
		Example: `  rootlessnode up
  rootlessnode kubectl get nodes
  rootlessnode shell
  rootlessnode down`,
		Version:                    node.Version,
		SilenceErrors:              true,
		SilenceUsage:               true,
		TraverseChildren:           true,
		SuggestionsMinimumDistance: suggestionDistance,
		PersistentPreRunE:          func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) },
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	name := a.env(layout.EnvName)
	if name == "" {
		name = config.DefaultName
	}
	root.PersistentFlags().StringVar(&a.name, "name", name, "name of the node; an account can have several nodes (or "+layout.EnvName+")")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return errdefs.Config("%w", err).Hint(cmd.CommandPath() + " --help")
	})
	root.AddGroup(
		&cobra.Group{ID: groupNode, Title: "Node commands:"}, &cobra.Group{ID: groupUse, Title: "Commands for working with the node:"},
		&cobra.Group{ID: groupLook, Title: "Troubleshooting commands:"}, &cobra.Group{ID: groupSetup, Title: "Setup commands:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupNode, newUp(a), newDown(a), newStatus(a), newList(a), newReload(a), newRestart(a), newToken(a), newLeave(a))
	add(groupUse, newKubectl(a), newKubeconfig(a), newExec(a), newRun(a), newShell(a), newImages(a), newPorts(a), newMounts(a))
	add(groupLook, newTop(a), newEvents(a), newMetrics(a), newLogs(a), newCheck(a), newReport(a))
	add(groupSetup, newInstall(a), newUninstall(a), newConfig(a), newSnapshot(a), newHost(a), newManifests(a), newMountNS(a), newVersion(a))
	root.AddCommand(newRunSteps(a)...)
	root.SetHelpCommandGroupID(groupSetup)
	root.SetCompletionCommandGroupID(groupSetup)
	setDefaults(root)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	addCompletion(a, root)
	for _, c := range root.Commands() {
		if c.Name() == "help" || c.Name() == "completion" { // they do not concern a node
			c.Annotations = map[string]string{allowRoot: "true"}
		}
	}
	return root
}

// Groups of commands in the help.
const (
	groupNode  = "node"
	groupUse   = "use"
	groupLook  = "look"
	groupSetup = "setup"
)

// group adds commands below parent.
func group(parent *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	parent.AddCommand(commands...)
	return parent
}

// setDefaults completes cmd and the commands below it: a command without a function of its own prints its help, which root may
// read too, and a command that does not declare arguments has none.
func setDefaults(cmd *cobra.Command) {
	if cmd.RunE == nil {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		cmd.Args = noCommand
		cmd.Annotations = map[string]string{allowRoot: cmd.Annotations[allowRoot], printsHelp: "true"}
	}
	if cmd.Args == nil && !cmd.DisableFlagParsing {
		cmd.Args = arguments(0, 0)
		if cmd.ValidArgsFunction == nil && !cmd.HasSubCommands() {
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
	}
	for _, sub := range cmd.Commands() {
		setDefaults(sub)
	}
}

// prepare checks -o and the user. It runs before every command.
func (a *app) prepare(cmd *cobra.Command) error {
	if a.output != "" && a.output != "json" {
		err := fmt.Errorf("unknown output format %q", a.output)
		a.output = ""
		return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err), "use -o json, or omit -o for text")
	}
	if completionRequest(cmd) {
		return nil
	}
	allowed := a.uid != 0 || cmd.Annotations[printsHelp] != ""
	for c := cmd; c != nil; c = c.Parent() {
		allowed = allowed || c.Annotations[allowRoot] != ""
	}
	if allowed {
		return nil
	}
	err := errdefs.Preflight("run as an ordinary user: root cannot run a rootless node")
	if a.inUserNS() {
		err = errdefs.Preflight("run as an ordinary user: this process is uid 0 of another user namespace").
			Hint("leave that user namespace (unshare, a rootless container, the node's shell),",
				"or in a container that has enough ids for another account:")
	}
	const account = "rootlessnode"
	if _, lookup := user.Lookup(account); lookup != nil {
		err = err.Do(errdefs.CreateAccount, account)
	}
	return err.With(errdefs.Hint{{Action: errdefs.Start, As: account}})
}

// withOutput adds -o to a command.
func (a *app) withOutput(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVarP(&a.output, "output", "o", "", "output format: json")
	completeValues(cmd, "output", "json")
	return cmd
}

// completeValues completes the values of a flag of cmd.
func completeValues(cmd *cobra.Command, flag string, values ...string) {
	// An error means that there is no such flag.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// suggestionDistance is the maximum edit distance between a mistyped command and a suggestion.
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
	return errdefs.Config("unknown command %q for %s", args[0], cmd.CommandPath()).Hint(hint)
}

// arguments returns a check that a command gets between least and most arguments. With most < 0 there is no maximum.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		err := fmt.Errorf("%s: got %d arguments, expected %s", cmd.CommandPath(), len(args), count(least, most))
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
