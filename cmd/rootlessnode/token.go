package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

// tokenLimitTime is how long the API server may take to answer.
const tokenLimitTime = 30 * time.Second

func newToken(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make, list and delete the tokens with which other nodes join",
		Args:  noCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTokenCreate(a), newTokenList(a), newTokenDelete(a))
	return cmd
}

func newTokenCreate(a *app) *cobra.Command {
	var o node.JoinTokenOptions
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Print the command with which another node joins this one's cluster",
		Long: `Make a bootstrap token and print the command with which another node joins this
one's cluster, before the token expires. The node must run its own control plane
and listen where others reach it (api.bindAddress).

A token is for one node, and is deleted once that node has its certificate;
--reusable makes one for several nodes. With --node it is for the node of that
name only, and can replace one that has stopped: no other token can join under the
name of a Node object that exists.

The command on standard output holds a secret. Whoever has it can add a node.`,
		Example: `  rootlessnode token create
  rootlessnode token create --node worker-1
  rootlessnode token create --reusable --ttl 24h --description "the build machines"
  rootlessnode token create -o json`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.createToken(cmd.Context(), o) },
	}
	cmd.Flags().DurationVar(&o.TTL, "ttl", time.Hour, "how long it is good for")
	cmd.Flags().StringVar(&o.Description, "description", "", "`TEXT` for the list")
	cmd.Flags().StringVar(&o.NodeName, "node", "", "only the node of this `NAME` may join with it, also in place of one that has stopped")
	cmd.Flags().BoolVar(&o.Reusable, "reusable", false, "several nodes may join with it")
	a.outputFlag(cmd)
	return cmd
}

func (a *app) createToken(ctx context.Context, o node.JoinTokenOptions) error {
	if o.TTL < time.Second {
		return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("--ttl %s: a token must expire, and not at once", o.TTL)), "--ttl 1h")
	}
	n, err := a.attached()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, tokenLimitTime)
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
	_, _ = fmt.Fprintf(a.err, "the token is for %s, and good until %s\n", uses, t.Expires.Local().Format(time.RFC1123))
	return nil
}

// joinCommand is what another account or machine runs.
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
		Args:  arguments(0, 0),
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
	ctx, cancel := context.WithTimeout(ctx, tokenLimitTime)
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
	rows := [][]string{{"ID", "EXPIRES", "FOR", "DESCRIPTION"}}
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

// tokenUse says which nodes may join with a token.
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
		Short: "Delete bootstrap tokens; nodes that joined with them stay",
		Args:  arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := a.attached()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), tokenLimitTime)
			defer cancel()
			var errs []error
			for _, arg := range args {
				if err := n.DeleteJoinToken(ctx, arg); err != nil {
					errs = append(errs, err)
					continue
				}
				id, _, _ := strings.Cut(arg, ".")
				a.printf("token %s is deleted\n", id)
			}
			return a.hintNotRunning(errors.Join(errs...))
		},
	}
}
