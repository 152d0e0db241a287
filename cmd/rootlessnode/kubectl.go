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
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

type kubectlNode interface {
	Runtime() layout.Runtime
	Kubeconfig() string
	ComponentPath(name string) (string, error)
}

var _ kubectlNode = (*node.Node)(nil)

func newKubectl(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [ARG...]",
		Short: "Run kubectl against the node's cluster",
		Long: `Run the kubectl of the node's components on the host, with the node's kubeconfig.
All arguments are passed to kubectl.`,
		DisableFlagParsing: true,
		RunE: withNode(a, func(_ context.Context, n kubectlNode, args []string) error {
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
		}),
	}
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
