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

// checkOptions are the flags of check.
type checkOptions struct {
	node nodeFlags
	// all also shows passing checks. explain is the code of the check to describe. script prints root's commands.
	all     bool
	explain string
	script  bool
}

func newCheck(a *app) *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check whether this host meets the node's requirements",
		Long: `Check whether this host meets the node's requirements, without changing anything.
The exit code is 3 if the node cannot start on this host.

Each finding has the code of its check, and the commands that fix it. --root-script
prints all commands for root as a shell script that can be run again, and --explain
describes a check.`,
		Example: `  rootlessnode check
  rootlessnode check --root-script | sudo sh
  rootlessnode check --explain RN-SUBIDS`,
		Annotations: map[string]string{allowRoot: "true"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.explain != "" {
				return explain(a, o.explain)
			}
			return check(cmd.Context(), a, o)
		},
	}
	o.node.register(cmd)
	cmd.Flags().BoolVar(&o.all, "all", true, "also show passing checks")
	cmd.Flags().StringVar(&o.explain, "explain", "", "describe the check with this `CODE`, without running it")
	cmd.Flags().BoolVar(&o.script, "root-script", false, "print the commands for root as a shell script")
	completeValues(cmd, "explain", preflight.Codes()...)
	return a.withOutput(cmd)
}

func check(ctx context.Context, a *app, o checkOptions) error {
	n, _, err := a.nextNode(&o.node)
	if err != nil {
		return err
	}
	findings, err := n.(checker).Check(ctx)
	if err != nil {
		return err
	}
	if o.script {
		script := preflight.RootScript(findings, a.commandOf)
		a.show(struct {
			Script string `json:"script"`
		}{script}, script)
		return nil
	}
	failed := a.reportOf(preflight.Err(findings))
	for i := range findings {
		findings[i].Render(a.commandOf)
	}
	a.show(findings, renderFindings(findings, failed, o.all, a.styleOf(a.stdout)))
	if failed != nil {
		return exitCode(errdefs.ExitPreflight)
	}
	return nil
}

// explain prints the description of a check.
func explain(a *app, code string) error {
	c, ok := preflight.Explain(code)
	if !ok {
		return errdefs.Config("unknown check %q", code).Hint("one of: " + strings.Join(preflight.Codes(), " "))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s): %s\n", c.Code, c.Name, c.Title)
	for _, part := range []struct{ head, text string }{
		{"why", c.Why}, {"fails if", c.Fails}, {"warns if", c.Warns}, {"fix", c.Fix},
	} {
		if part.text != "" {
			b.WriteString("\n" + part.head + ":\n" + wrap(part.text, explainColumns))
		}
	}
	a.show(c, b.String())
	return nil
}

// explainColumns is the width of the text of a description.
const explainColumns = 80

// wrap returns text in indented lines of at most the given number of columns.
func wrap(text string, columns int) string {
	var b strings.Builder
	line := " "
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > columns {
			b.WriteString(line + "\n")
			line = " "
		}
		line += " " + word
	}
	return b.String() + line + "\n"
}

// renderFindings lists the findings, followed by the hints of failed, the report of the failures: one block of commands that fix all
// of them.
func renderFindings(findings []preflight.Finding, failed *errdefs.Report, all bool, st style) string {
	var b strings.Builder
	count := map[preflight.Level]int{}
	width := 0
	for _, f := range findings {
		count[f.Level]++
		width = max(width, len(f.Code))
	}
	indent := strings.Repeat(" ", len(preflight.LevelWarn)+width+4)
	colours := map[preflight.Level]string{preflight.LevelPass: green, preflight.LevelWarn: yellow, preflight.LevelFail: red}
	for _, f := range findings {
		if f.Level == preflight.LevelPass && !all {
			continue
		}
		fmt.Fprintf(&b, "%s  %-*s  %s\n", st.paint(colours[f.Level], string(f.Level)), width, f.Code, sanitize(f.Message))
		if f.Why != "" { // a comment, so that the lines below a finding can be pasted
			b.WriteString(indent + "# " + f.Why + "\n")
		}
		if f.Level == preflight.LevelWarn && f.Hint != "" {
			for line := range strings.Lines(sanitize(f.Hint)) {
				b.WriteString(indent + strings.TrimRight(line, "\n") + "\n")
			}
		}
	}
	if failed != nil {
		b.WriteString("\n" + sanitize(renderHints(failed.Hints)))
	}
	fmt.Fprintf(&b, "\n%d pass, %d warn, %d fail\n", count[preflight.LevelPass], count[preflight.LevelWarn], count[preflight.LevelFail])
	return b.String()
}
