package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

type kubectlNode interface {
	Runtime() layout.Runtime
	Kubeconfig() string
	ComponentPath(name string) (string, error)
}

var _ kubectlNode = (*node.Node)(nil)

func newKubectl(a *app) *cobra.Command {
	run := withNode(a, func(_ context.Context, n kubectlNode, args []string) error { return runKubectl(a, n, args) })
	return &cobra.Command{
		Use:   "kubectl [ARG...]",
		Short: "Run kubectl against the node's cluster",
		Long: `Run the kubectl of the node's components on the host, with the node's kubeconfig.
All arguments are passed to kubectl, except --name NAME in front of the others.`,
		DisableFlagParsing: true,
		ValidArgsFunction:  completeKubectl(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := a.takeName(args)
			if err != nil {
				return err
			}
			return run(cmd, args)
		},
	}
}

// takeName takes --name from the front of kubectl's arguments, where kubectl has no such flag.
func (a *app) takeName(args []string) ([]string, error) {
	if len(args) == 0 {
		return args, nil
	}
	flag, value, given := strings.Cut(args[0], "=")
	switch {
	case flag != "--name":
		return args, nil
	case given:
		a.name = value
		return args[1:], nil
	case len(args) == 1:
		return nil, errdefs.Config("flag needs an argument: --name")
	}
	a.name = args[1]
	return args[2:], nil
}

// runKubectl replaces this process by kubectl.
func runKubectl(a *app, n kubectlNode, args []string) error {
	path, err := n.ComponentPath("kubectl")
	if err != nil {
		return err
	}
	if _, err := os.Stat(n.Kubeconfig()); err != nil {
		return a.noKubeconfig(err)
	}
	if _, err := os.Stat(n.Runtime().NodeSocket()); errors.Is(err, fs.ErrNotExist) {
		_, _ = fmt.Fprintf(a.err, "warning: node %q is not running (%s)\n", a.name, a.command("up"))
	}
	return a.replace(path, append([]string{"kubectl"}, args...), withEnv(os.Environ(), "KUBECONFIG", n.Kubeconfig()))
}

// withEnv returns env with one variable set.
func withEnv(env []string, key, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, key+"=") })
	return append(env, key+"="+value)
}

// replaceProcess executes another program in place of this process. It returns only on error.
func replaceProcess(path string, argv, env []string) error {
	return fmt.Errorf("execute %s: %w", path, unix.Exec(path, argv, env))
}
