package main

import (
	"bytes"
	"context"
	_ "embed" // the functions for bash
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// bashFunctions replace functions of the package bash-completion in the script of cobra.
//
//go:embed completion.bash
var bashFunctions string

// completionLimit is how long a completion waits for the node or its API server.
const completionLimit = 3 * time.Second

// addCompletion completes the commands below root: names of nodes, values of flags, and no files for commands without arguments.
func addCompletion(a *app, root *cobra.Command) {
	_ = root.RegisterFlagCompletionFunc("name", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return a.nodeNames(), cobra.ShellCompDirectiveNoFileComp
	})
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			completeBashAlone(root, cmd)
		}
	}
}

// completeBashAlone changes the command "completion bash" so that its script does not need the package bash-completion.
func completeBashAlone(root, completion *cobra.Command) {
	for _, cmd := range completion.Commands() {
		if cmd.Name() != "bash" {
			continue
		}
		cmd.Long = "Print the completion script for bash. It does not need other packages.\n\n" +
			"To load it in this shell:\n\n\tsource <(rootlessnode completion bash)\n\n" +
			"To load it in each new shell, add that line to ~/.bashrc."
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			plain, err := cmd.Flags().GetBool("no-descriptions")
			if err != nil {
				return err
			}
			return writeBashCompletion(root, cmd.OutOrStdout(), !plain)
		}
	}
}

// writeBashCompletion writes the script of cobra with functions of its own in place of those of bash-completion.
func writeBashCompletion(root *cobra.Command, w io.Writer, descriptions bool) error {
	var script bytes.Buffer
	if err := root.GenBashCompletionV2(&script, descriptions); err != nil {
		return err
	}
	before, rest, _ := strings.Cut(script.String(), "    if declare -F _init_completion")
	_, after, ok := strings.Cut(rest, "    fi\n")
	if !ok {
		return errors.New("the script of this version of cobra is not supported")
	}
	text := strings.NewReplacer(
		"_filedir", "__rootlessnode_filedir",
		"${completions[0]}", "${completions[0]-}", // a shell with set -u
	).Replace(before + "    __rootlessnode_words\n" + after)
	_, err := io.WriteString(w, bashFunctions+text)
	return err
}

// nodeNames returns the names of the account's nodes. It returns nothing on an error.
func (a *app) nodeNames() []string {
	names, err := a.names()
	if err != nil {
		return nil
	}
	return names
}

// completeFields completes the fields for --unset.
func completeFields(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	var out []string
	for _, d := range config.Fields() {
		if strings.HasPrefix(d.Path, typed) {
			out = append(out, cobra.CompletionWithDesc(d.Path, d.Doc))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeSettings completes the fields for --set, and the values of fields that have only few.
func completeSettings(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	path, _, hasValue := strings.Cut(typed, "=")
	var out []string
	for _, d := range config.Fields() {
		switch {
		case hasValue && d.Path == path:
			for _, v := range d.Values {
				out = append(out, path+"="+v)
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		case !hasValue && strings.HasPrefix(d.Path, typed):
			out = append(out, cobra.CompletionWithDesc(d.Path+"=", d.Doc))
		}
	}
	return out, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// completeManualPorts completes the forwards of `ports add`.
func completeManualPorts(a *app) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (out []string, _ cobra.ShellCompDirective) {
		n, err := attached[portNode](a)
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
		defer cancel()
		s, err := n.Status(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return manualPorts(s.Ports), cobra.ShellCompDirectiveNoFileComp
	}
}

// manualPorts returns the forwards of `ports add`, as they were given.
func manualPorts(ports []status.Port) (forwards []string) {
	for _, p := range ports {
		if forward, ok := strings.CutPrefix(p.Owner, "manual/"); ok {
			forwards = append(forwards, forward)
		}
	}
	return forwards
}

// completeKubectl runs the kubectl of the node to get its completions, which include objects in the cluster.
func completeKubectl(a *app) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 1 && args[0] == "--name" {
			return a.nodeNames(), cobra.ShellCompDirectiveNoFileComp
		}
		args, err := a.takeName(args)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		n, err := attached[kubectlNode](a)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		path, err := n.ComponentPath("kubectl")
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
		defer cancel()
		request := append([]string{cobra.ShellCompRequestCmd, "--kubeconfig=" + n.Kubeconfig()}, args...)
		var out strings.Builder
		if err := a.execute(ctx, path, append(request, typed), &out); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return parseCompletions(out.String())
	}
}

// parseCompletions parses the answer of a program that uses cobra: a completion in each line, and at last the directive, as ":4".
func parseCompletions(text string) ([]string, cobra.ShellCompDirective) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	last := len(lines) - 1
	directive, err := strconv.Atoi(strings.TrimPrefix(lines[last], ":"))
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return lines[:last], cobra.ShellCompDirective(directive)
}

// completionRequest reports whether a shell asks for completions with cmd.
func completionRequest(cmd *cobra.Command) bool {
	return cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd
}
