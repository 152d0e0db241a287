package main

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

type executor interface {
	Exec(ctx context.Context, req nodeexec.Request) (int, error)
}

var _ executor = (*node.Node)(nil)

func newExec(a *app) *cobra.Command {
	var env []string
	var dir string
	var tty bool
	cmd := &cobra.Command{
		Use:   "exec [flags] -- COMMAND [ARG...]",
		Short: "Run a command inside the node",
		Long: `Run a command inside the node, in its namespaces and in a separate cgroup below the
node's. The command gets the standard streams and signals of "rootlessnode exec". The
exit code is that of the command: 128 plus the signal number if a signal killed it,
127 if it was not found, 126 if it cannot be executed.

Processes that the command leaves running are killed when it exits.`,
		Example: `  rootlessnode exec -- ctr containers list
  rootlessnode exec -- ip address
  rootlessnode exec -t -- top`,
		Args: arguments(1, -1),
		RunE: withNode(a, func(ctx context.Context, n executor, args []string) error {
			return execute(ctx, a, n, nodeexec.Request{Argv: args, Env: passEnv(env), Dir: dir, TTY: tty})
		}),
	}
	cmd.Flags().SetInterspersed(false) // flags after the program's name belong to the program
	cmd.Flags().StringArrayVarP(&env, "env", "e", nil, "set `KEY=VALUE`, or pass KEY from this environment; may be repeated")
	cmd.Flags().StringVarP(&dir, "workdir", "w", "", "working `DIR` inside the node (default: the current one, if it exists there)")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "allocate a terminal")
	return cmd
}

// execute runs req with this process's streams. If the program was started, the error is an exitCode or nil.
func execute(ctx context.Context, a *app, n executor, req nodeexec.Request) error {
	if req.Stdin == nil {
		req.Stdin = a.stdin
	}
	req.Stdout, req.Stderr, req.ForwardSignals = a.stdout, a.stderr, true
	code, err := n.Exec(ctx, req)
	if err == nil && code != 0 {
		return exitCode(code)
	}
	return a.hintNotRunning(err)
}

// passEnv returns the environment that a program inside gets from this process: the variables for the terminal and the
// locale, and the requested ones (KEY=VALUE, or KEY to pass it on).
func passEnv(requested []string) []string {
	var out []string
	for _, kv := range os.Environ() {
		k, _, _ := strings.Cut(kv, "=")
		if k == "TERM" || k == "COLORTERM" || k == "LANG" || strings.HasPrefix(k, "LC_") {
			out = append(out, kv)
		}
	}
	for _, kv := range requested {
		if k, _, ok := strings.Cut(kv, "="); !ok {
			v, set := os.LookupEnv(k)
			if !set {
				continue
			}
			kv = k + "=" + v
		}
		out = append(out, kv)
	}
	return out
}
