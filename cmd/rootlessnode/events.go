package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

type eventSource interface {
	Events(ctx context.Context, follow bool, fn func(status.Event) error) error
}

var _ eventSource = (*node.Node)(nil)

func newEvents(a *app) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show the node's events since it started",
		Long: `Show the node's events since it started, oldest first. With -f, also show new events
until the node stops. -o json writes one object per line.`,
		RunE: withNode(a, func(ctx context.Context, n eventSource, _ []string) error {
			ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
			defer stop()
			enc := json.NewEncoder(a.out)
			enc.SetEscapeHTML(false)
			return a.hintNotRunning(n.Events(ctx, follow, func(e status.Event) error {
				if a.output == "json" {
					return enc.Encode(e)
				}
				_, err := io.WriteString(a.out, renderEvent(e))
				return err
			}))
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "also show new events")
	return a.withOutput(cmd)
}

// renderEvent returns the event as text: one line, followed by the last output of a component that exited.
func renderEvent(e status.Event) string {
	const clock = "15:04:05.000"
	when := e.Time.Local().Format(clock)
	if e.Lost > 0 {
		return fmt.Sprintf("%s  (%d events were lost: this reader was too slow)\n", when, e.Lost)
	}
	change := joinNonEmpty(" -> ", e.From, e.To)
	line := fmt.Sprintf("%s  %-*s %-*s %s", when, nameColumn, e.Component, changeColumn, change, oneLine(e.Reason))
	var b strings.Builder
	b.WriteString(strings.TrimRight(line, " ") + "\n")
	for _, t := range e.Tail {
		b.WriteString("    | " + t + "\n")
	}
	return b.String()
}

// changeColumn fits "starting -> running".
const changeColumn = 20

// hintNotRunning adds the hint to start the node to errors of class ErrNotRunning.
func (a *app) hintNotRunning(err error) error {
	if errors.Is(err, errdefs.ErrNotRunning) {
		err = fmt.Errorf("node %q is not running: %w", a.name, err)
		return errdefs.WithHint(err, a.command("up"))
	}
	return err
}
