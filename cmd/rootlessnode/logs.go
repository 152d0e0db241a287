package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

type logNode interface {
	Data() layout.Data
}

var _ logNode = (*node.Node)(nil)

// logOptions are the flags of logs.
type logOptions struct {
	follow bool
	tail   int // lines, or allLines
}

func newLogs(a *app) *cobra.Command {
	var o logOptions
	cmd := &cobra.Command{
		Use:   "logs [COMPONENT]",
		Short: "Show the log of a component, or of the node itself",
		Long: `Show the log of a component or, without an argument, of the node itself (its parent,
child and node roles). Logs are kept after the node has stopped.`,
		Args: arguments(0, 1),
		RunE: withNode(a, func(ctx context.Context, n logNode, args []string) error {
			return showLog(ctx, a, n, o, append(args, nodeLog)[0])
		}),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			n, err := attached[logNode](a)
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return logNames(n.Data().LogDir()), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "also show new lines")
	cmd.Flags().IntVar(&o.tail, "tail", allLines, "show only the last `N` lines")
	return cmd
}

const (
	// nodeLog is the log of the node itself.
	nodeLog = "node"
	// allLines is the value of --tail for the whole log.
	allLines  = -1
	logSuffix = ".log"
)

func showLog(ctx context.Context, a *app, n logNode, o logOptions, component string) error {
	path := n.Data().Log(component)
	if strings.ContainsRune(component, filepath.Separator) {
		path = "" // not a component; do not open files outside of the log dir
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return noLog(a, component, logNames(n.Data().LogDir()))
	}
	if err != nil {
		return fmt.Errorf("open log of %s: %w", component, err)
	}
	l := &logReader{f: f, path: path, out: a.out}
	defer l.close()
	if err := l.skipToTail(o.tail); err != nil {
		return fmt.Errorf("read log of %s: %w", component, err)
	}
	if !o.follow {
		err = l.copy()
	} else {
		ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
		defer stop()
		err = l.follow(ctx)
	}
	if err != nil && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("read log of %s: %w", component, err)
	}
	return nil
}

func noLog(a *app, component string, have []string) error {
	err := fmt.Errorf("log of %q not found", component)
	if len(have) == 0 {
		return errdefs.Errorf("%w: node %q was never started", err, a.name).Hint(a.command("up"))
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err), "available logs: "+strings.Join(have, " "))
}

// logNames returns the names of the logs in dir.
func logNames(dir string) []string {
	files, err := filepath.Glob(filepath.Join(dir, "*"+logSuffix))
	if err != nil {
		return nil // only a malformed pattern is an error
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), logSuffix))
	}
	slices.Sort(names)
	return names
}
