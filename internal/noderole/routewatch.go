package noderole

import (
	"context"
	"fmt"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/filewatch"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// routeWatch reports routes of the host that appeared after the start of the node, for example with a VPN, and overlap its networks.
// The parent publishes them in a file.
type routeWatch struct {
	path string // Runtime.HostRoutes
}

func (w routeWatch) Run(ctx context.Context, report conditionReporter) error {
	routes, err := filewatch.New(w.path, filewatch.JSON[[]layout.RouteOverlap])
	if err != nil {
		return err
	}
	defer routes.Close()
	for {
		found, err := routes.Read()
		if err != nil {
			return err
		}
		report.set(routeCondition(found))
		select {
		case <-ctx.Done():
			return nil
		case <-routes.Changed():
		}
	}
}

// routeCondition is a warning if there are overlaps, because the cluster itself works.
func routeCondition(found []layout.RouteOverlap) status.Condition {
	c := status.Condition{OK: true}
	var texts []string
	hint := errdefs.Do(errdefs.Stop)
	for _, o := range found {
		texts = append(texts, fmt.Sprintf("the host's route to %s (%s) overlaps %s %s: addresses in both cannot be reached from the node",
			o.Route, o.Device, o.Field, o.Range))
		hint = hint.Do(errdefs.Start, o.Field+"="+o.Free)
		if o.Field == fieldServices {
			hint = hint.Note("a new cluster is needed: delete its data before")
		}
	}
	if len(found) > 0 {
		c.Warning, c.Reason, c.Message, c.Steps = true, "RouteOverlap", strings.Join(texts, "; "), hint
	}
	return c
}

// fieldServices is the field of the Service range, which a cluster with data keeps.
const fieldServices = "cluster.serviceCIDR"
