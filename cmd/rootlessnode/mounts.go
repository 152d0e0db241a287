package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/mountview"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
)

func newMounts(a *app) *cobra.Command {
	return group(a.withOutput(&cobra.Command{
		Use:   "mounts",
		Short: "Show the mounts inside the node, their owners, and which of them the host sees",
		Long: `Show the mounts inside the node, counted by owner: those propagated from the host, the
node's, and those of each pod. The last line says how many of the mounts of the node
and the pods the host sees. With -o json every mount is listed.`,
		RunE: withNode(a, func(ctx context.Context, n executor, _ []string) error { return showMounts(ctx, a, n) }),
	}), newMountsVerify(a), newMountsAgent(a))
}

func showMounts(ctx context.Context, a *app, n executor) error {
	text, code, err := output(ctx, n, nodeexec.Request{Argv: mountview.Command(), Stderr: a.stderr})
	if err != nil {
		return a.hintNotRunning(err)
	}
	if code != 0 {
		return fmt.Errorf("list mounts: the shell inside exited with code %d, see its output above", code)
	}
	host, err := mountview.Host()
	if err != nil {
		return fmt.Errorf("list the host's mounts: %w", err)
	}
	v, err := mountview.Parse([]byte(text), host)
	if err != nil {
		return err
	}
	rows := [][]string{{"OWNER", "POD", "OBJECT", "MOUNTS"}}
	for _, g := range v.Groups {
		rows = append(rows, []string{string(g.Kind), orDash(g.Pod), orDash(g.What), strconv.Itoa(g.Mounts)})
	}
	a.show(v, fmt.Sprintf("%s\nthe host sees %d of the %d mounts of the node and its pods\n", table(rows), v.HostSees, v.Own))
	return nil
}
