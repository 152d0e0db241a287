package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// ReloadOptions are the arguments of Reload. All are required.
type ReloadOptions struct {
	// Config is the complete configuration that a start with Settings would have, as Node.Config of a handle of New returns it.
	Config   *config.NodeConfig
	Settings config.Settings
	// Fields are the fields to apply. Each must be reloadable (config.Reloadable).
	Fields []string
}

// Reload applies changed fields of the configuration to a running node, and keeps the settings for later starts. It restarts the components
// whose files or flags change, waits until they are ready, and returns their names. Pods continue to run. n is a handle of Attach.
//
// Errors: of class errdefs.ErrConfig if the resulting configuration is invalid or a field is not reloadable; nothing is changed
// then. Of class errdefs.ErrComponent if a component does not start with it, or errdefs.ErrTimeout if it is not ready when ctx ends; the
// former configuration is applied again then. Of class errdefs.ErrNotRunning if the node is not running.
func Reload(ctx context.Context, n *Node, o ReloadOptions) (restarted []string, err error) {
	next := n.Config().With(o.Config, o.Fields)
	if err := next.Validate(); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(next)
	if err != nil {
		return nil, err
	}
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	before, err := c.Status(ctx)
	if err != nil {
		return nil, explain(n, err)
	}
	if restarted, err = c.Reload(ctx, raw); err != nil {
		return nil, explain(n, err)
	}
	if err := awaitRestarted(ctx, n, c, before, restarted); err != nil {
		return restarted, errors.Join(err, undoReload(n, c))
	}
	if err := layout.WriteJSON(n.rt.Config(), next); err != nil {
		return restarted, err
	}
	n.cfg.Store(next)
	if requested := RequestedConfig(next.Name, n.data.Dir); requested != nil {
		now, err := o.Settings.Build(next.Name)
		if err != nil {
			return restarted, err
		}
		if err := putSettings(n, o.Settings, requested.With(now, o.Fields)); err != nil {
			return restarted, err
		}
	}
	return restarted, nil
}

// undoReload applies the config of n again, after a component did not start with another one.
func undoReload(n *Node, c *status.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoLimit)
	defer cancel()
	raw, err := json.Marshal(n.Config())
	if err != nil {
		return err
	}
	before, err := c.Status(ctx)
	if err != nil {
		return explain(n, err)
	}
	restarted, err := c.Reload(ctx, raw)
	if err == nil {
		err = awaitRestarted(ctx, n, c, before, restarted)
	}
	if err != nil {
		return fmt.Errorf("restore the former configuration: %w", err)
	}
	return nil
}

// undoLimit is the time limit of undoReload.
const undoLimit = time.Minute

// RestartComponent ends a component of a running node, so that the node starts it again, and waits until it is ready. Pods continue to
// run.
//
// Errors: of class errdefs.ErrConfig if there is no such component; errdefs.ErrTimeout if it is not ready when ctx ends;
// errdefs.ErrNotRunning if the node is not running.
func RestartComponent(ctx context.Context, n *Node, name string) error {
	c := status.NewClient(n.rt.NodeSocket())
	defer c.Close()
	before, err := c.Status(ctx)
	if err != nil {
		return explain(n, err)
	}
	var names []string
	for _, one := range before.Components {
		if one.IsProgram() {
			names = append(names, one.Name)
		}
	}
	if !slices.Contains(names, name) {
		return errdefs.Config("the node has no component %q; its components are %s", name, strings.Join(names, ", "))
	}
	if err := c.Restart(ctx, name); err != nil {
		return explain(n, err)
	}
	return awaitRestarted(ctx, n, c, before, []string{name})
}

// awaitRestarted waits until the components have been started once more than before and are ready.
func awaitRestarted(ctx context.Context, n *Node, c *status.Client, before *status.Status, names []string) error {
	if len(names) == 0 {
		return nil
	}
	var waits []string
	for since := uint64(0); ; {
		s, err := c.WaitStatus(ctx, since)
		if err != nil && ctx.Err() == nil {
			return explain(n, err)
		}
		if s != nil {
			waits = notRestarted(before, s, names)
			since = s.ResourceVersion
			if name, text := failsAgain(before, s, names); name != "" {
				return errdefs.Component("%s", text).Do(errdefs.ShowLogs, name)
			}
		}
		switch {
		case ctx.Err() != nil:
			return errdefs.Timeout("wait for restarted components: %s", strings.Join(waits, "; ")).Do(errdefs.ShowStatus).Do(errdefs.ShowLogs, names[0])
		case len(waits) == 0:
			return nil
		}
	}
}

// failsAgain returns a restarted component that has failed more than once, with a description.
func failsAgain(before, now *status.Status, names []string) (name, text string) {
	for _, name := range names {
		was, is := before.Component(name), now.Component(name)
		failed := is != nil && (is.State == status.Backoff || is.State == status.Failed)
		if failed && was != nil && is.Restarts >= was.Restarts+2 {
			return name, is.Describe()
		}
	}
	return "", ""
}

// notRestarted describes the components that are not ready again.
func notRestarted(before, now *status.Status, names []string) (waits []string) {
	for _, name := range names {
		was, is := before.Component(name), now.Component(name)
		switch {
		case was == nil || is == nil:
			waits = append(waits, name+" does not exist")
		case is.Restarts == was.Restarts || is.State != status.Ready:
			waits = append(waits, is.Describe())
		}
	}
	return waits
}
