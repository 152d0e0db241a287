package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// stopper is the part of node.Node for stopping it and deleting its data.
type stopper interface {
	handle
	Status(ctx context.Context) (*status.Status, error)
	Stop(ctx context.Context) error
	WaitCleaned(ctx context.Context) error
	DeleteData(ctx context.Context) (*datadir.Result, error)
}

var _ stopper = (*node.Node)(nil)

// stopOptions are the flags of down.
type stopOptions struct {
	// timeout is the time after which processes are killed. 0: timeouts.stop.
	timeout time.Duration
	// podTimeout is the time that the pods have to stop. 0: timeouts.podStop.
	podTimeout time.Duration
	deleteData bool
}

func newDown(a *app) *cobra.Command {
	var o stopOptions
	var ended, all bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the node",
		Long: `Stop the node gracefully and wait until all of its processes have ended. Its data is
kept, and the next "rootlessnode up" uses it again, unless --delete-data is given.
Stopping a stopped node succeeds. --all stops all nodes of the account.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cmd.Flags().Changed("pod-timeout"):
				o.podTimeout = max(o.podTimeout, atOnce)
			case o.deleteData:
				o.podTimeout = deletedPodsLimit
			}
			switch {
			case all && cmd.Flags().Changed("name"):
				return errdefs.Config("--all: must not be used with --name")
			case all:
				return stopAll(cmd.Context(), a, o)
			case ended:
				return withNode(a, awaitCleaned)(cmd, args)
			}
			return withNode(a, func(ctx context.Context, n stopper, _ []string) error {
				s, err := briefStatus(ctx, n)
				if err != nil {
					return err
				}
				return stopNode(ctx, a, n, s, o)
			})(cmd, args)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&o.deleteData, "delete-data", false, "also delete the node's data, including files owned by subordinate ids; other files in the data dir are kept")
	fl.DurationVar(&o.timeout, "timeout", 0, "kill remaining processes after this time (default: timeouts.stop)")
	fl.DurationVar(&o.podTimeout, "pod-timeout", 0, "kill pods that have not stopped after this time, and stop the rest in order (default: timeouts.podStop, with --delete-data 3s)")
	fl.BoolVar(&all, "all", false, "stop all nodes of the account; with --delete-data also delete the data of stopped ones")
	fl.BoolVar(&ended, "ended", false, "do nothing if the node is running; otherwise wait until its resources are cleaned up")
	_ = fl.MarkHidden("ended") // the flag is there
	return cmd
}

// awaitCleaned is the stop of the unit of install, whose main process has exited.
func awaitCleaned(ctx context.Context, n stopper, _ []string) error {
	ctx, cancel := context.WithTimeout(ctx, n.Config().Timeouts.Stop.D())
	defer cancel()
	return n.WaitCleaned(ctx)
}

// briefStatus returns the status of the node before a stop.
func briefStatus(ctx context.Context, n stopper) (*status.Status, error) {
	brief, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	return n.Status(brief)
}

// statusLimit is how long down waits for the status of the node.
const statusLimit = time.Second

// deletedPodsLimit is the time that pods have to stop if their data is deleted.
const deletedPodsLimit = 3 * time.Second

// atOnce is the shortest time limit for pods, because 0 means no limit.
const atOnce = time.Millisecond

// stopNode stops the node, whose status was s, and deletes its data if requested.
func stopNode(ctx context.Context, a *app, n stopper, s *status.Status, o stopOptions) error {
	stopping, cancel := context.WithTimeout(ctx, cmp.Or(max(o.timeout, 0), n.Config().Timeouts.Stop.D()))
	defer cancel()
	began := a.now()
	stopReports := reportStop(ctx, a.err, n)
	if o.podTimeout > 0 && isRunning(s) {
		brief, cancel := context.WithTimeout(ctx, statusLimit)
		_ = a.beginStop(brief, n, o.podTimeout) // a node that does not respond is stopped in the usual way
		cancel()
	}
	err := n.Stop(stopping)
	stopReports()
	if err != nil {
		return err
	}
	if isRunning(s) {
		a.printf("node %q stopped (%s)\n", a.name, seconds(a.now().Sub(began)))
	} else {
		a.printf("node %q is not running\n", a.name)
	}
	if !o.deleteData {
		return nil
	}
	res, err := n.DeleteData(ctx)
	if err == nil {
		defer unmergeAfterDelete(a, a.userKubeconfig(n))
	}
	if res == nil && err == nil {
		a.printf("the node has no data\n")
	}
	if res != nil {
		printRemoved(a, res, err)
	}
	return err
}

// printRemoved prints which data was deleted and which was kept.
func printRemoved(a *app, res *datadir.Result, err error) {
	if err == nil {
		a.printf("deleted the node's data in %s\n", res.Dir)
	}
	if res.DirKept != "" {
		a.printf("kept the empty directory %s: %s\n", res.Dir, res.DirKept)
	}
	if len(res.Foreign) > 0 {
		a.printf("kept these files, which do not belong to the node:\n  %s\n", strings.Join(res.Foreign, "\n  "))
	}
	if err == nil && res.Next != "" {
		a.printf("data of an earlier start is in %s; the next %q uses it\n", res.Next, a.command("up"))
	}
}

// stopReportInterval is the time after which a stop reports what it waits for, and the minimum time between two such reports.
const stopReportInterval = 2 * time.Second

// podsComponent is the name of the component that stops the pods.
const podsComponent = "pods"

// reportStop prints what a slow stop waits for, until the returned function is called.
func reportStop(ctx context.Context, w io.Writer, n stopper) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(stopReportInterval)
		defer tick.Stop()
		for reported := ""; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			s, err := n.Status(ctx)
			if err != nil {
				continue // the node is just exiting
			}
			if text := stopWaits(s); text != "" && text != reported {
				reported = text
				_, _ = fmt.Fprintf(w, "waiting for %s\n", text)
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

// stopWaits describes what the stop of the node waits for, or returns "": the pods, otherwise the components that are being stopped.
func stopWaits(s *status.Status) string {
	var names []string
	for _, c := range s.Components {
		switch {
		case c.State != status.Stopping:
		case c.Name == podsComponent && c.Reason != "":
			return "pods: " + c.Reason
		default:
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 || s.State != status.NodeStopping {
		return ""
	}
	return "components: " + strings.Join(names, ", ")
}
