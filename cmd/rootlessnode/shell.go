package main

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
)

func newShell(a *app) *cobra.Command {
	var script string
	cmd := &cobra.Command{
		Use:   "shell [flags] [COMMAND]",
		Short: "Open a shell inside the node",
		Long: `Open a shell inside the node ($SHELL, or /bin/sh if that does not exist there) and
allocate a terminal. The prompt begins with the name of the node. With a COMMAND or
with -c, run the command in the shell.`,
		Example: `  rootlessnode shell
  rootlessnode shell ip address
  rootlessnode shell -c 'ctr containers list | wc -l'`,
		Args: arguments(0, -1),
	}
	cmd.RunE = withNode(a, func(ctx context.Context, n executor, args []string) error {
		command := shellCommand{words: args}
		if cmd.Flags().Changed("command") {
			command.script = &script
		}
		return openShell(ctx, a, n, command)
	})
	cmd.Flags().SetInterspersed(false) // flags after the command's name belong to the command
	cmd.Flags().StringVarP(&script, "command", "c", "", "run `SCRIPT`; the arguments are $0, $1 and so on, as with sh -c")
	return cmd
}

// fallbackShell exists on every system (POSIX).
const fallbackShell = "/bin/sh"

// shellCommand is a command for a shell: the script with arguments, or the words. Without both, the shell is interactive.
type shellCommand struct {
	script *string
	words  []string
}

// argv returns the command line of a shell, and variables for its environment. prompt is the beginning of the prompt of an interactive shell.
func (s shellCommand) argv(shell, prompt string) (argv, env []string) {
	switch {
	case s.script != nil:
		return append([]string{shell, "-c", *s.script}, s.words...), nil
	case len(s.words) > 0:
		return []string{shell, "-c", strings.Join(s.words, " ")}, nil
	}
	return interactiveShell(shell, prompt)
}

// interactiveShell returns the command line and variables for an interactive shell whose prompt begins with text. The user's own
// configuration of bash and fish is read first. Other shells get the variable PS1, which their configuration may replace.
func interactiveShell(shell, text string) (argv, env []string) {
	switch filepath.Base(shell) {
	case "bash":
		rc := "[ ! -r ~/.bashrc ] || . ~/.bashrc\nPS1=" + hostinfo.Quote(text) + "$PS1"
		return []string{shell, "-c", `exec "$0" --rcfile <(printf '%s\n' "$1")`, shell, rc}, nil
	case "fish":
		return []string{shell, "-C", "functions -c fish_prompt rootlessnode_prompt; function fish_prompt; echo -n " + hostinfo.Quote(text) +
			"; rootlessnode_prompt; end"}, nil
	}
	return []string{shell}, []string{"PS1=" + text + "# "}
}

func openShell(ctx context.Context, a *app, n executor, command shellCommand) error {
	run := func(shell string) error {
		argv, env := command.argv(shell, "("+a.name+") ")
		env = append(env, layout.EnvName+"="+a.name, "SHELL="+shell)
		return execute(ctx, a, n, nodeexec.Request{Argv: argv, TTY: isTerminal(a.stdin) && isTerminal(a.stdout), Env: passEnv(env)})
	}
	shell := cmp.Or(a.env("SHELL"), fallbackShell)
	err := run(shell)
	var start *nodeexec.StartError
	if errors.As(err, &start) && start.Code == nodeexec.ExitNotFound && shell != fallbackShell {
		err = run(fallbackShell)
	}
	return err
}
