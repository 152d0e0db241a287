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
	var ttl time.Duration
	var description string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Print the command with which another node joins this one's cluster",
		Long: `Make a bootstrap token and print the command with which another node joins this
one's cluster, once or several times, until the token expires. The node must run
its own control plane and listen where others reach it (api.bindAddress).

The command on standard output holds a secret. Whoever has it can add a node.`,
		Example: `  rootlessnode token create
  rootlessnode token create --ttl 1h --description "the build machines"
  rootlessnode token create -o json`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.createToken(cmd.Context(), ttl, description) },
	}
	const day = 24 * time.Hour
	cmd.Flags().DurationVar(&ttl, "ttl", day, "how long it is good for")
	cmd.Flags().StringVar(&description, "description", "", "`TEXT` for the list")
	a.outputFlag(cmd)
	return cmd
}

func (a *app) createToken(ctx context.Context, ttl time.Duration, description string) error {
	if ttl < time.Second {
		return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("--ttl %s: a token must expire, and not at once", ttl)), "--ttl 24h")
	}
	n, err := a.attached()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, tokenLimitTime)
	defer cancel()
	t, err := n.CreateJoinToken(ctx, ttl, description)
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
	_, _ = fmt.Fprintf(a.err, "the token is good until %s\n", t.Expires.Local().Format(time.RFC1123))
	return nil
}

// joinCommand is what another account or machine runs.
func joinCommand(t *node.JoinToken) string {
	words := []string{"rootlessnode up --join", t.Server, tokenFlag, t.Token}
	for _, h := range t.CACertHashes {
		words = append(words, "--ca-cert-hash", h)
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
	rows := [][]string{{"ID", "EXPIRES", "DESCRIPTION"}}
	for _, t := range tokens {
		expires := "never"
		if left := t.Expires.Sub(a.now()); !t.Expires.IsZero() {
			expires = "in " + age(left)
			if left <= 0 {
				expires = "expired"
			}
		}
		rows = append(rows, []string{t.ID, expires, oneLine(t.Description)})
	}
	a.printf("%s", table(rows))
	return nil
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
