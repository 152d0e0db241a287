package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

type checker interface {
	Check(ctx context.Context) ([]preflight.Finding, error)
}

var _ checker = (*node.Node)(nil)

func newCheck(a *app) *cobra.Command {
	var f nodeFlags
	var all bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check whether this host meets the node's requirements",
		Long: `Check whether this host meets the node's requirements, without changing anything.
The exit code is 3 if the node cannot start on this host.`,
		Annotations: map[string]string{allowRoot: "true"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := f.build(a.name)
			if err != nil {
				return err
			}
			n, err := a.newNode(cfg, node.Options{Log: a.logger()})
			if err != nil {
				return err
			}
			findings, err := n.(checker).Check(cmd.Context())
			if err != nil {
				return err
			}
			failed := a.reportOf(preflight.Err(findings))
			for i := range findings {
				findings[i].Render(a.commandOf)
			}
			a.show(findings, renderFindings(findings, failed, all, a.styleOf(a.stdout)))
			if failed != nil {
				return exitCode(errdefs.ExitPreflight)
			}
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&all, "all", true, "also show passing checks")
	return a.withOutput(cmd)
}

// renderFindings lists the findings, followed by the hints of failed, the report of the failures: one block of commands that fix all
// of them.
func renderFindings(findings []preflight.Finding, failed *errdefs.Report, all bool, st style) string {
	var b strings.Builder
	count := map[preflight.Level]int{}
	width := 0
	for _, f := range findings {
		count[f.Level]++
		width = max(width, len(f.Check))
	}
	colours := map[preflight.Level]string{preflight.LevelPass: green, preflight.LevelWarn: yellow, preflight.LevelFail: red}
	for _, f := range findings {
		if f.Level == preflight.LevelPass && !all {
			continue
		}
		fmt.Fprintf(&b, "%s  %-*s  %s\n", st.paint(colours[f.Level], string(f.Level)), width, f.Check, f.Message)
		if f.Level == preflight.LevelWarn && f.Hint != "" {
			for line := range strings.Lines(f.Hint) {
				b.WriteString(strings.Repeat(" ", len("warn")+width+4) + strings.TrimRight(line, "\n") + "\n")
			}
		}
	}
	if failed != nil {
		b.WriteString("\n" + renderHints(failed.Hints))
	}
	fmt.Fprintf(&b, "\n%d pass, %d warn, %d fail\n", count[preflight.LevelPass], count[preflight.LevelWarn], count[preflight.LevelFail])
	return b.String()
}
