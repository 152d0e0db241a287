package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func newEvents(a *app) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show the node's events since it started",
		Long: `Show the node's events since it started, oldest first. With -f, also show new events
until the node stops. -o json writes one object per line.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.events(cmd.Context(), follow) },
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "also show new events")
	a.outputFlag(cmd)
	return cmd
}

func (a *app) events(ctx context.Context, follow bool) error {
	n, err := a.attached()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	err = n.Events(ctx, follow, func(e status.Event) error {
		if a.output == "json" {
			return enc.Encode(e)
		}
		_, err := fmt.Fprint(a.out, renderEvent(e))
		return err
	})
	return a.hintNotRunning(err)
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
