package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/pkg/datadir"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func newDown(a *app) *cobra.Command {
	var deleteData, ended bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the node",
		Long: `Stop the node, in order, and return when nothing of it is left. Its data stays,
and "rootlessnode up" goes on with it, unless --delete-data is given. A node
that does not run is no error.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ended {
				return a.cleaned(cmd.Context())
			}
			return a.down(cmd.Context(), timeout, deleteData)
		},
	}
	cmd.Flags().BoolVar(&deleteData, "delete-data", false, "also remove the node's data, with the files of subordinate ids; other files in the data dir stay")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "kill what has not ended by then (default: timeouts.stop)")
	cmd.Flags().BoolVar(&ended, "ended", false, "leave a node alone that runs; wait for what one that has ended leaves")
	_ = cmd.Flags().MarkHidden("ended") // for the unit of install
	return cmd
}

// cleaned is what the unit of install asks once the service's main process has ended.
func (a *app) cleaned(ctx context.Context) error {
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

// stopNode stops the node and removes its data where wanted. running is for what it says.
func (a *app) stopNode(ctx context.Context, n handle, timeout time.Duration, running, deleteData bool) error {
	if timeout <= 0 {
		timeout = n.Config().Timeouts.Stop.D()
	}
	stopping, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := a.now()
	endTelling := a.tellPods(ctx, n)
	err := n.Stop(stopping)
	endTelling()
	if err != nil {
		return err
	}
	if running {
		a.printf("node %q is stopped (%s)\n", a.name, seconds(a.now().Sub(began)))
	} else {
		a.printf("node %q was not running\n", a.name)
	}
	if !deleteData {
		return nil
	}
	res, err := n.DeleteData(ctx)
	a.printRemoved(res, err == nil)
	return err
}

// printRemoved prints what a removal of data removed, and what it kept.
func (a *app) printRemoved(res *datadir.Result, complete bool) {
	if res == nil {
		if complete {
			a.printf("it has no data\n")
		}
		return
	}
	if complete {
		a.printf("its data in %s is removed\n", res.Dir)
	}
	if res.DirKept != "" {
		a.printf("the empty directory %s stays: %s\n", res.Dir, res.DirKept)
	}
	if len(res.Foreign) > 0 {
		a.printf("kept, because it does not belong to the node:\n")
	}
	for _, path := range res.Foreign {
		a.printf("  %s\n", path)
	}
	if complete && res.Next != "" {
		a.printf("its data of an earlier start is in %s; %q continues with it\n", res.Next, a.command("up"))
	}
}

// quietStop is how long a stop may take until it says what it waits for, and the least time between two such lines.
const quietStop = 3 * time.Second

// podsComponent is the component of the status that stops the pods.
const podsComponent = "pods"

// tellPods prints the pods that a stop waits for, when it takes long, until the returned function is called.
func (a *app) tellPods(ctx context.Context, n handle) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(quietStop)
		defer tick.Stop()
		for told := ""; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			s, err := n.Status(ctx)
			if err != nil {
				continue // it ends at this moment
			}
			if c := s.Component(podsComponent); c != nil && c.State == status.Stopping && c.Reason != "" && c.Reason != told {
				told = c.Reason
				_, _ = fmt.Fprintf(a.err, "waiting for pods: %s\n", told)
			}
		}
	})
	return func() { cancel(); done.Wait() }
}
