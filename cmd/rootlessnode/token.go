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

func newToken(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list and delete bootstrap tokens for joining nodes",
	}
	cmd.AddCommand(newTokenCreate(a), newTokenList(a), newTokenDelete(a))
	return cmd
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
		RunE: func(cmd *cobra.Command, _ []string) error { return a.createToken(cmd.Context(), o) },
	}
	cmd.Flags().DurationVar(&o.TTL, "ttl", time.Hour, "how long the token is valid")
	cmd.Flags().StringVar(&o.Description, "description", "", "`TEXT` to show in the list of tokens")
	cmd.Flags().StringVar(&o.NodeName, "node", "", "only the node `NAME` may join with the token, also to replace a stopped node of that name")
	cmd.Flags().BoolVar(&o.Reusable, "reusable", false, "several nodes may join with the token")
	a.outputFlag(cmd)
	return cmd
}

func (a *app) createToken(ctx context.Context, o node.JoinTokenOptions) error {
	if o.TTL < time.Second {
		return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("--ttl %s: must be at least 1s", o.TTL)), "--ttl 1h")
	}
	n, err := a.attached()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	t, err := n.CreateJoinToken(ctx, o)
	if err != nil {
		return a.hintNotRunning(err)
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
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the cluster's bootstrap tokens, without their secrets",
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.listTokens(cmd.Context()) },
	}
	a.outputFlag(cmd)
	return cmd
}

func (a *app) listTokens(ctx context.Context) error {
	n, err := a.attached()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	tokens, err := n.JoinTokens(ctx)
	if err != nil {
		return a.hintNotRunning(err)
	}
	if a.output == "json" {
		if tokens == nil {
			tokens = []kubeapi.BootstrapToken{}
		}
		a.printJSON(a.out, tokens)
		return nil
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
	a.printf("%s", table(rows))
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
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := a.attached()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), tokenTimeout)
			defer cancel()
			var errs []error
			for _, arg := range args {
				if err := n.DeleteJoinToken(ctx, arg); err != nil {
					errs = append(errs, err)
					continue
				}
				id, _, _ := strings.Cut(arg, ".")
				a.printf("token %s deleted\n", id)
			}
			return a.hintNotRunning(errors.Join(errs...))
		},
	}
}
