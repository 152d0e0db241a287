package runtime

import (
	"context"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
)

// externalUnit is the name of the unit that waits for an external runtime.
const externalUnit = "external-runtime"

// external is a runtime that the user starts inside the node.
type external struct{ cfg *config.NodeConfig }

// ExternalComponent returns the entry of an external runtime in the catalogue.
func ExternalComponent() component.Component {
	return component.Component{
		Name:    externalUnit,
		Enabled: func(c *config.NodeConfig) bool { return c.CRI.Runtime == config.RuntimeExternal },
		Ready: func(e component.Env) func(context.Context) error {
			return component.Probe{Unix: Socket(e.Config)}.Check
		},
	}
}

func (external) Unit() string                                 { return externalUnit }
func (e external) Endpoint() string                           { return e.cfg.CRI.Endpoint }
func (external) Cgroup() string                               { return "/" + containerdNamespace }
func (e external) PauseImage() string                         { return e.cfg.Containerd.PauseImage }
func (external) Env(component.Storage) []string               { return nil }
func (external) HasImageStore() bool                          { return false }
func (external) RunsBundled() bool                            { return false }
func (external) Detect() (component.Storage, []string, error) { return component.Storage{}, nil, nil }
func (external) ImportCommand(string, string) []string        { return nil }
func (e external) HostNeeds() HostNeeds {
	return HostNeeds{Text: ": the kubelet will wait for " + e.cfg.CRI.Endpoint + " inside"}
}
func (external) WithoutImport() string { return "" }
func (external) ManualImport() string  { return "PROGRAM    # the client of the external runtime" }
