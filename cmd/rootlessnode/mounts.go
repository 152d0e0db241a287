package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/pkg/mountview"
)

func newMounts(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mounts",
		Short: "Show what is mounted inside, whose it is, and what the host sees of it",
		Long: `Show what is mounted inside the node, counted by owner: mounts of the host that
came in, the node's own, and those of each pod. Below it how many of the node's
and the pods' the host sees. With -o json every mount is listed.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.showMounts(cmd.Context()) },
	}
	a.outputFlag(cmd)
	cmd.AddCommand(newMountsVerify(a), newMountsAgent(a))
	return cmd
}

func (a *app) showMounts(ctx context.Context) error {
	n, err := a.attached()
	if err != nil {
		return err
	}
	text, code, err := output(ctx, n, mountview.Command(), a.stderr)
	if err != nil {
		return a.hintNotRunning(err)
	}
	if code != 0 {
		return fmt.Errorf("list mounts: the shell inside ended with code %d, see above", code)
	}
	host, err := mountview.Host()
	if err != nil {
		return fmt.Errorf("list the host's mounts: %w", err)
	}
	v, err := mountview.Parse([]byte(text), host)
	if err != nil {
		return err
	}
	if a.output == "json" {
		a.printJSON(a.out, v)
		return nil
	}
	rows := [][]string{{"OF", "POD", "WHAT", "MOUNTS"}}
	for _, g := range v.Groups {
		rows = append(rows, []string{string(g.Kind), orDash(g.Pod), orDash(g.What), strconv.Itoa(g.Mounts)})
	}
	a.printf("%s\nthe host sees %d of the %d mounts that are not its own\n", table(rows), v.HostSees, v.Own)
	return nil
}
