package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

// tokenTimeout limits the time for the requests of a token command to the API server.
const tokenTimeout = 30 * time.Second

// tokenNode is the part of node.Node for bootstrap tokens.
type tokenNode interface {
	CreateJoinToken(ctx context.Context, o node.JoinTokenOptions) (*node.JoinToken, error)
	JoinTokens(ctx context.Context) ([]kubeapi.BootstrapToken, error)
	DeleteJoinToken(ctx context.Context, idOrToken string) error
}

var _ tokenNode = (*node.Node)(nil)

// withTokens is withNode for the commands below token, with their time limit and the hint to start the node.
func withTokens(a *app, run func(context.Context, tokenNode, []string) error) func(*cobra.Command, []string) error {
	return withNode(a, func(ctx context.Context, n tokenNode, args []string) error {
		ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
		defer cancel()
		return a.hintNotRunning(run(ctx, n, args))
	})
}

func newToken(a *app) *cobra.Command {
	return group(&cobra.Command{Use: "token", Short: "Create, list and delete bootstrap tokens for joining nodes"},
		newTokenCreate(a), newTokenList(a), newTokenDelete(a))
}

func newTokenCreate(a *app) *cobra.Command {
	var o node.JoinTokenOptions
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a bootstrap token and print the join command",
		Long: `Create a bootstrap token and print the command with which another node joins the
cluster of this node before the token expires. This node must run its own control plane
and listen on an address that the other node reaches (api.bindAddress).

A token is valid for one node and is deleted once that node has its certificate;
--reusable creates one for several nodes. With --node it is valid only for the node of
that name, and can replace a stopped node: no other token can join under the name of an
existing Node object.

The command on standard output contains a secret: everyone who has it can add a node.`,
		Example: `  rootlessnode token create
  rootlessnode token create --node worker-1
  rootlessnode token create --reusable --ttl 24h --description "the build machines"
  rootlessnode token create -o json`,
		RunE: withTokens(a, func(ctx context.Context, n tokenNode, _ []string) error { return createToken(ctx, a, n, o) }),
	}
	cmd.Flags().DurationVar(&o.TTL, "ttl", time.Hour, "how long the token is valid")
	cmd.Flags().StringVar(&o.Description, "description", "", "`TEXT` to show in the list of tokens")
	cmd.Flags().StringVar(&o.NodeName, "node", "", "only the node `NAME` may join with the token, also to replace a stopped node of that name")
	cmd.Flags().BoolVar(&o.Reusable, "reusable", false, "several nodes may join with the token")
	return a.withOutput(cmd)
}

func createToken(ctx context.Context, a *app, n tokenNode, o node.JoinTokenOptions) error {
	if o.TTL < time.Second {
		return errdefs.Config("--ttl %s: must be at least 1s", o.TTL).Hint("--ttl 1h")
	}
	t, err := n.CreateJoinToken(ctx, o)
	if err != nil {
		return err
	}
	if a.output == "json" {
		a.printJSON(a.out, struct {
			*node.JoinToken
			Command string `json:"command"`
		}{t, joinCommand(t)})
		return nil
	}
	a.printf("%s\n", joinCommand(t))
	uses := "one node"
	if t.NodeName != "" {
		uses = "node " + t.NodeName
	} else if t.Reusable {
		uses = "any number of nodes"
	}
	_, _ = fmt.Fprintf(a.err, "the token is valid for %s until %s\n", uses, t.Expires.Local().Format(time.RFC1123))
	return nil
}

// joinCommand returns the command that another account or machine runs to join.
func joinCommand(t *node.JoinToken) string {
	words := []string{"rootlessnode up --join", t.Server, tokenFlag, t.Token}
	for _, h := range t.CACertHashes {
		words = append(words, "--ca-cert-hash", h)
	}
	if t.NodeName != "" {
		words = append(words, "--set", "nodeName="+t.NodeName)
	}
	return strings.Join(words, " ")
}

func newTokenList(a *app) *cobra.Command {
	return a.withOutput(&cobra.Command{
		Use:   "list",
		Short: "List the cluster's bootstrap tokens, without their secrets",
		RunE:  withTokens(a, func(ctx context.Context, n tokenNode, _ []string) error { return listTokens(ctx, a, n) }),
	})
}

func listTokens(ctx context.Context, a *app, n tokenNode) error {
	tokens, err := n.JoinTokens(ctx)
	if err != nil {
		return err
	}
	rows := [][]string{{"ID", "EXPIRES", "NODES", "DESCRIPTION"}}
	for _, t := range tokens {
		expires := "never"
		if left := t.Expires.Sub(a.now()); !t.Expires.IsZero() {
			expires = "in " + age(left)
			if left <= 0 {
				expires = "expired"
			}
		}
		rows = append(rows, []string{t.ID, expires, tokenUse(t), oneLine(t.Description)})
	}
	a.show(append([]kubeapi.BootstrapToken{}, tokens...), table(rows)) // an empty list, not null
	return nil
}

// tokenUse describes the nodes that may join with a token.
func tokenUse(t kubeapi.BootstrapToken) string {
	switch {
	case t.NodeName != "":
		return "node " + t.NodeName
	case !t.SingleUse:
		return "any number of nodes"
	case t.UsedBy != "":
		return "node " + t.UsedBy + " (used)"
	}
	return "one node"
}

func newTokenDelete(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "delete ID|TOKEN...",
		Short: "Delete bootstrap tokens; nodes that have joined with them stay in the cluster",
		Args:  arguments(1, -1),
		RunE: withTokens(a, func(ctx context.Context, n tokenNode, args []string) error {
			var errs []error
			for _, arg := range args {
				if err := n.DeleteJoinToken(ctx, arg); err != nil {
					errs = append(errs, err)
					continue
				}
				id, _, _ := strings.Cut(arg, ".")
				a.printf("token %s deleted\n", id)
			}
			return errors.Join(errs...)
		}),
	}
}
