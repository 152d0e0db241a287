package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func newDown(a *app) *cobra.Command {
	var deleteData, ended bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the node",
		Long: `Stop the node gracefully and wait until all of its processes have ended. Its data is
kept, and the next "rootlessnode up" uses it again, unless --delete-data is given.
Stopping a stopped node succeeds.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ended {
				return a.waitCleaned(cmd.Context())
			}
			return a.down(cmd.Context(), timeout, deleteData)
		},
	}
	cmd.Flags().BoolVar(&deleteData, "delete-data", false, "also delete the node's data, including files owned by subordinate ids; other files in the data dir are kept")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "kill remaining processes after this time (default: timeouts.stop)")
	cmd.Flags().BoolVar(&ended, "ended", false, "do nothing if the node is running; otherwise wait until its resources are cleaned up")
	_ = cmd.Flags().MarkHidden("ended") // for the unit of install
	return cmd
}

// waitCleaned waits until the resources of an ended node are cleaned up. The unit of install runs it once the service's
// main process has exited.
func (a *app) waitCleaned(ctx context.Context) error {
	n, err := a.attached()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, n.Config().Timeouts.Stop.D())
	defer cancel()
	return n.WaitCleaned(ctx)
}

func (a *app) down(ctx context.Context, timeout time.Duration, deleteData bool) error {
	n, err := a.attached()
	if err != nil {
		return err
	}
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	return a.stopNode(ctx, n, timeout, isRunning(s), deleteData)
}

// stopNode stops the node and, if deleteData is set, deletes its data. running selects the message that it prints.
func (a *app) stopNode(ctx context.Context, n handle, timeout time.Duration, running, deleteData bool) error {
	if timeout <= 0 {
		timeout = n.Config().Timeouts.Stop.D()
	}
	stopping, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := a.now()
	stopReports := a.reportPodStop(ctx, n)
	err := n.Stop(stopping)
	stopReports()
	if err != nil {
		return err
	}
	if running {
		a.printf("node %q stopped (%s)\n", a.name, seconds(a.now().Sub(began)))
	} else {
		a.printf("node %q is not running\n", a.name)
	}
	if !deleteData {
		return nil
	}
	res, err := n.DeleteData(ctx)
	a.printRemoved(res, err == nil)
	return err
}

// printRemoved prints which data was deleted and which was kept.
func (a *app) printRemoved(res *datadir.Result, complete bool) {
	if res == nil {
		if complete {
			a.printf("the node has no data\n")
		}
		return
	}
	if complete {
		a.printf("deleted the node's data in %s\n", res.Dir)
	}
	if res.DirKept != "" {
		a.printf("kept the empty directory %s: %s\n", res.Dir, res.DirKept)
	}
	if len(res.Foreign) > 0 {
		a.printf("kept these files, which do not belong to the node:\n")
	}
	for _, path := range res.Foreign {
		a.printf("  %s\n", path)
	}
	if complete && res.Next != "" {
		a.printf("data of an earlier start is in %s; the next %q uses it\n", res.Next, a.command("up"))
	}
}

// podStopReportInterval is the time after which a stop reports the pods that it waits for, and the minimum time between two
// such reports.
const podStopReportInterval = 3 * time.Second

// podsComponent is the name of the component that stops the pods.
const podsComponent = "pods"

// reportPodStop prints the pods that a slow stop waits for, until the returned function is called.
func (a *app) reportPodStop(ctx context.Context, n handle) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(podStopReportInterval)
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
			if c := s.Component(podsComponent); c != nil && c.State == status.Stopping && c.Reason != "" && c.Reason != reported {
				reported = c.Reason
				_, _ = fmt.Fprintf(a.err, "waiting for pods: %s\n", reported)
			}
		}
	})
	return func() { cancel(); done.Wait() }
}
