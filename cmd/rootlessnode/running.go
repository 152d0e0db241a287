package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// checkSameConfig returns an error of class errdefs.ErrAlreadyRunning with the fields in which the running node differs from n, which
// has the settings set. flags are those of the command line.
func checkSameConfig(a *app, n handle, set config.Settings, flags string) error {
	running, err := a.attach(a.name, node.Options{Log: a.logger()})
	if err != nil {
		return err
	}
	changes, err := changesOf(a, set, n.Config(), running.Config())
	if err != nil || len(changes) == 0 {
		return err
	}
	var faults []error
	for _, d := range changes {
		faults = append(faults, fmt.Errorf("%s: node %q is running with %s, requested: %s", d.Field, a.name, valueText(d.Was), valueText(d.Now)))
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrAlreadyRunning, errors.Join(faults...)),
		"# apply the change, as far as that is possible without a restart:\n"+a.command("reload"+flags)+"\n"+
			"# or restart the node with it:\n"+a.command("down")+"\n"+a.command("up"+flags))
}

// valueText describes a value for people.
func valueText(v string) string {
	if v == "" {
		return "none"
	}
	return v
}

// changesOf returns the fields in which a start with the settings set would differ from the running node. wanted is the complete
// configuration of that start, and running that of the running node.
func changesOf(a *app, set config.Settings, wanted, running *config.NodeConfig) ([]config.Difference, error) {
	now, err := set.Build(a.name)
	if err != nil {
		return nil, err
	}
	origins := set.Origins()
	var changes []config.Difference
	if was := a.requested(a.name, running.DataDir); was != nil {
		changes = config.Differences(was, now)
	} else {
		// An earlier version or another program has started the node: only what the user has set can be compared.
		changes = slices.DeleteFunc(config.Differences(running, now), func(d config.Difference) bool {
			return origins[d.Field].Kind == config.OriginDefault || d.Field == "api.port" && d.Now == "0"
		})
	}
	changes = slices.DeleteFunc(changes, func(d config.Difference) bool { return config.KeptWithData(d.Field) })
	for _, d := range config.Differences(running, wanted) { // complete, because the data completes them
		if origins[d.Field].Kind != config.OriginDefault && (d.Field == "dataDir" || d.Field == "join.server") {
			changes = append(changes, d)
		}
	}
	return changes, nil
}

// joinRunning waits for the running node, whose status is s, as `up` does after a start.
func joinRunning(ctx context.Context, a *app, n starter, s *status.Status, set config.Settings, o upOptions) (err error) {
	if s.State == status.NodeStopping || s.Failure != nil { // it is ending, or does not respond
		return n.Start(ctx) // an error, because the node is running
	}
	if err := checkSameConfig(a, n, set, o.flags); err != nil {
		return err
	}
	last := *s
	if !s.Reached(o.wait) {
		if last, err = awaitNode(ctx, a, n, o.wait); err != nil {
			return err
		}
	}
	a.printf("node %q is already running\n", a.name)
	hideKnown(a, n, &last, o)
	printSummary(a, n, last)
	return nil
}

// printRemembered prints the settings of the last start that this start uses.
func printRemembered(a *app, set config.Settings) {
	file, fields := set.Remembered()
	var flags []string
	if file != "" {
		flags = append(flags, "--config "+hostinfo.Quote(file))
	}
	for _, f := range fields {
		flags = append(flags, "--set "+hostinfo.Quote(f.Path+"="+f.Value))
	}
	if len(flags) > 0 {
		_, _ = fmt.Fprintf(a.err, "using the settings of the last start, which --reset-config forgets: %s\n", strings.Join(flags, " "))
	}
}
