package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

func newReload(a *app) *cobra.Command {
	var f nodeFlags
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Apply a changed configuration to the running node",
		Long: `Apply the configuration that "rootlessnode up" would use with the same flags to the
running node: a changed configuration file, or new flags. Components whose files or
flags change are restarted; pods continue to run. The settings are remembered for the
next start.

Fields that a running node cannot change are listed; they take effect at the next
start, and the exit code is 1.`,
		Example: `  rootlessnode reload
  rootlessnode reload --set kubelet.maxPods=200 --set ports.static=8080:30080`,
		RunE: func(cmd *cobra.Command, _ []string) error { return reload(cmd.Context(), a, &f, timeout) },
	}
	f.register(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", componentLimit, "how long to wait for the restarted components")
	return a.withOutput(cmd)
}

// componentLimit is how long reload and restart wait for components by default.
const componentLimit = 2 * time.Minute

// reloadResult is the output of reload as JSON.
type reloadResult struct {
	Applied   []string `json:"applied"`
	Restarted []string `json:"restarted"`
	// NextStart lists the fields that take effect at the next start.
	NextStart []string `json:"nextStart"`
}

func reload(ctx context.Context, a *app, f *nodeFlags, timeout time.Duration) error {
	running, err := attached[attachedNode](a)
	if err != nil {
		return err
	}
	if err := checkRunning(ctx, a, running); err != nil {
		return err
	}
	runningConfig := running.Config()
	next, set, err := a.nextNode(f)
	if err != nil {
		return err
	}
	changes, err := changesOf(a, set, next.Config(), runningConfig)
	if err != nil {
		return err
	}
	var res reloadResult
	var later []error
	for _, d := range changes {
		if config.Reloadable(d.Field) {
			res.Applied = append(res.Applied, d.Field)
			continue
		}
		res.NextStart = append(res.NextStart, d.Field)
		later = append(later, fmt.Errorf("%s: cannot change while the node is running: it is %s, and will be %s at the next start",
			d.Field, valueText(d.Was), valueText(d.Now)))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res.Restarted, err = a.reload(ctx, running, node.ReloadOptions{Config: next.Config(), Settings: set, Fields: res.Applied})
	if err != nil {
		return errdefs.Errorf("%w; the node has its former configuration", err)
	}
	a.show(res, renderReload(res))
	return errdefs.WithHint(errors.Join(later...), "# restart the node:\n"+a.command("restart"))
}

// checkRunning returns an error if the node is not running.
func checkRunning(ctx context.Context, a *app, n statusNode) error {
	s, err := n.Status(ctx)
	if err == nil && s.ParentPID == 0 {
		err = errdefs.NotRunning("node %q is not running", a.name).Do(errdefs.Start)
	}
	return err
}

func renderReload(r reloadResult) string {
	if len(r.Applied)+len(r.NextStart) == 0 {
		return "the configuration has not changed\n"
	}
	text := ""
	if len(r.Applied) > 0 {
		text = "applied: " + strings.Join(r.Applied, ", ") + "\n"
	}
	if len(r.Restarted) > 0 {
		text += "restarted: " + strings.Join(slices.Sorted(slices.Values(r.Restarted)), ", ") + "\n"
	}
	return text
}
