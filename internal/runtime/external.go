package runtime

import (
	"context"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
)

// externalUnit is the name of the unit that waits for an external runtime.
const externalUnit = "external-runtime"

// external is a runtime that the user starts inside the node.
type external struct{ endpoint string }

// ExternalComponent returns the entry of an external runtime in the catalogue.
func ExternalComponent() component.Component {
	return component.Component{
		Name:    externalUnit,
		Enabled: func(c *config.NodeConfig) bool { return c.CRI.Runtime == config.RuntimeExternal },
		Ready: func(e component.Env) func(context.Context) error {
			return component.Probe{Unix: Socket(Of(e.Config))}.Check
		},
	}
}

func (external) Unit() string       { return externalUnit }
func (e external) Endpoint() string { return e.endpoint }
