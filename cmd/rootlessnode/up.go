package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/journal"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// starter is the part of node.Node for starting it.
type starter interface {
	handle
	Start(ctx context.Context) error
	RunForeground(ctx context.Context) error
	Status(ctx context.Context) (*status.Status, error)
	WaitFor(ctx context.Context, m status.Milestone, progress func(status.Status)) error
	Stop(ctx context.Context) error
	Kubeconfig() string
	snapshotNode
}

var _ starter = (*node.Node)(nil)

func newUp(a *app) *cobra.Command {
	var f nodeFlags
	var t tokenFlags
	var foreground bool
	var timeout, ttl time.Duration
	var verbose bool
	wait := waitFlag(status.MilestoneUsable)
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the node and wait until it can be used",
		Long: `Start the node and wait until it can be used: its Node is Ready, the container runtime
works, and the cluster DNS answers. With --wait=node it waits only for the Node, and
with --wait=pods also until the pods that were ready when the node stopped are ready
again, and the forwarded ports of their Services accept connections. If this takes
longer than --timeout, the exit code is 5 and the node keeps running.

The node keeps running in the background until "rootlessnode down" stops it. With
--foreground this process does not exit, and the node stops when it is terminated. This
is for systemd units.

With --join the node becomes a worker of another cluster. The first start needs a
bootstrap token ("rootlessnode token create" on a node of that cluster). --token is
visible in process lists for a moment; --token-file FILE, --token-file - for standard
input, and ROOTLESSNODE_JOIN_TOKEN are not.`,
		Example: `  rootlessnode up
  rootlessnode up --set api.bindAddress=0.0.0.0
  rootlessnode up --join https://192.0.2.1:6443 --token-file - --ca-cert-hash sha256:…`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, set, err := f.build(a)
			if err != nil {
				return err
			}
			token, err := t.read(a, cfg)
			if err != nil {
				return err
			}
			if foreground && cmd.Flags().Changed("wait") {
				return errdefs.Config("--wait: must not be used with --foreground, which does not wait")
			}
			if cmd.Flags().Changed("ttl") && ttl <= 0 {
				return errdefs.Config("--ttl: %s: must be greater than zero", ttl)
			}
			if foreground {
				return upForeground(cmd.Context(), a, cfg, node.Options{JoinToken: token, Settings: &set, TTL: ttl})
			}
			o := upOptions{wait: status.Milestone(wait), timeout: timeout, verbose: verbose, flags: f.line()}
			return up(cmd.Context(), a, cfg, node.Options{Log: a.logger(), Detach: true, JoinToken: token, Settings: &set, TTL: ttl}, o)
		},
	}
	f.register(cmd)
	secretFlag(cmd, &t.token, "token", layout.EnvJoinToken, "bootstrap `TOKEN` for --join, ID.SECRET")
	cmd.Flags().StringVar(&t.file, "token-file", "", "read the bootstrap token from `FILE`, which must not be accessible to other users; - is standard input")
	cmd.Flags().BoolVar(&foreground, "foreground", false, "run in the foreground; the node stops when this process exits")
	cmd.Flags().Var(&wait, "wait", "what to wait for: node (Node Ready), usable (also the container runtime and the cluster DNS), or pods (also the pods that were ready when the node stopped)")
	completeValues(cmd, "wait", milestones()...)
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait (default: timeouts.ready)")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "stop the node in order after this time, for example 2h")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "also show warnings that the last start has shown")
	return cmd
}

// milestones returns the values of --wait.
func milestones() (values []string) {
	for _, m := range status.Milestones() {
		values = append(values, string(m))
	}
	return values
}

// waitFlag is the value of --wait.
type waitFlag status.Milestone

func (f *waitFlag) String() string { return string(*f) }
func (f *waitFlag) Type() string   { return "MILESTONE" }
func (f *waitFlag) Set(text string) error {
	if !slices.Contains(status.Milestones(), status.Milestone(text)) {
		return fmt.Errorf("must be one of %v", status.Milestones())
	}
	*f = waitFlag(text)
	return nil
}

// upOptions are the flags of up that are not settings of the node.
type upOptions struct {
	wait    status.Milestone
	timeout time.Duration // 0: timeouts.ready
	// verbose also shows warnings that the last start has shown.
	verbose bool
	flags   string // the flags of the settings, as on the command line
}

func up(ctx context.Context, a *app, cfg *config.NodeConfig, no node.Options, o upOptions) error {
	if !o.verbose {
		no.HiddenWarnings = func(count int) { printHidden(a, count, "check") }
	}
	h, err := a.newNode(cfg, no)
	if err != nil {
		printRemembered(a, *no.Settings)
		return err
	}
	n := h.(starter)
	limit := cmp.Or(max(o.timeout, 0), n.Config().Timeouts.Ready.D())
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if s.ParentPID > 0 {
		waiting, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		if no.TTL > 0 {
			return errdefs.AlreadyRunning("--ttl: node %q is already running, and only a start can limit its time", a.name).Do(errdefs.Stop)
		}
		err := joinRunning(waiting, a, n, s, *no.Settings, o)
		if err != nil && ctx.Err() != nil {
			return errors.New("interrupted: the node continues to run")
		}
		return err
	}
	printRemembered(a, *no.Settings)
	began := a.now()
	if err := n.Start(ctx); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last, err := awaitNode(waiting, a, n, o.wait)
	if err != nil && ctx.Err() != nil {
		return stopInterrupted(a, n, stop)
	}
	if err != nil {
		return err
	}
	if _, ok := last.Timings[status.NodeReadyTiming]; !ok {
		last.StartedAt = began
	}
	hideKnown(a, n, &last, o)
	printSummary(a, n, last)
	a.reportUpgrade(n, began)
	return nil
}

// hideKnown removes the warnings of s that the last start has shown, unless --verbose is set.
func hideKnown(a *app, n handle, s *status.Status, o upOptions) {
	fresh, err := a.newWarnings(n, s.Warnings)
	if err != nil || o.verbose || len(fresh) == len(s.Warnings) {
		return
	}
	printHidden(a, len(s.Warnings)-len(fresh), "status")
	s.Warnings = fresh
}

// printHidden prints how many warnings are not shown, and the command that shows them.
func printHidden(a *app, count int, command string) {
	what := "1 warning is"
	if count > 1 {
		what = fmt.Sprintf("%d warnings are", count)
	}
	_, _ = fmt.Fprintf(a.err, "%s the same as at the last start; to show: %s\n", what, a.command(command))
}

// awaitNode waits until the node has reached a milestone, shows the progress, and returns the last status.
func awaitNode(ctx context.Context, a *app, n starter, m status.Milestone) (last status.Status, err error) {
	show := newProgress(a)
	defer show.close()
	err = n.WaitFor(ctx, m, func(s status.Status) {
		last = s
		show.update(s)
	})
	return last, err
}

// stopInterrupted stops the node after `up` was interrupted.
func stopInterrupted(a *app, n starter, stopCatching func()) error {
	stopCatching() // a second signal ends this process at once
	_, _ = fmt.Fprintln(a.err, "interrupted: stopping the node")
	ctx, cancel := context.WithTimeout(context.Background(), n.Config().Timeouts.Stop.D())
	defer cancel()
	if err := n.Stop(ctx); err != nil {
		return fmt.Errorf("stop node after interrupt: %w", err)
	}
	return errors.New("interrupted: the node was stopped")
}

func upForeground(ctx context.Context, a *app, cfg *config.NodeConfig, o node.Options) error {
	o.Log = foregroundLogger(a.err, cfg.LogLevel)
	n, err := a.newNode(cfg, o)
	if err != nil {
		return err
	}
	defer mergeInBackground(ctx, a, n.(starter))()
	return n.(starter).RunForeground(ctx)
}

func foregroundLogger(w io.Writer, level string) logrus.FieldLogger {
	l := logrus.New()
	l.SetOutput(w)
	l.SetFormatter(&logrus.TextFormatter{FullTimestamp: true})
	journal.Attach(l)
	if lv, err := logrus.ParseLevel(level); err == nil { // node.New returns an error for an invalid level
		l.SetLevel(lv)
	}
	return l
}
