// Package runtime is the container runtime of a node behind one interface, with the implementations containerd, CRI-O
// and external.
//
// Runs in: child side, unless a comment says otherwise.
package runtime

import (
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/containerd"
	"github.com/rootlessnode/rootlessnode/internal/component/crio"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Runtime is the container runtime of a node.
type Runtime interface {
	// Unit returns the name of the unit that is ready when the runtime accepts requests.
	Unit() string
	// Endpoint returns the URL of the CRI socket inside the node, for the kubelet and crictl.
	Endpoint() string
}

// Of returns the runtime of a node with the configuration c, which must be valid. Runs in: either side.
func Of(c *config.NodeConfig) Runtime {
	switch c.CRI.Runtime {
	case config.RuntimeCRIO:
		return crioRuntime{}
	case config.RuntimeExternal:
		return external{c.CRI.Endpoint}
	}
	return containerdRuntime{}
}

const unixScheme = "unix://"

// Socket returns the path of the runtime's CRI socket inside the node.
func Socket(r Runtime) string { return strings.TrimPrefix(r.Endpoint(), unixScheme) }

type containerdRuntime struct{}

func (containerdRuntime) Unit() string     { return containerd.Name }
func (containerdRuntime) Endpoint() string { return unixScheme + layout.InsideContainerdSock }

type crioRuntime struct{}

func (crioRuntime) Unit() string     { return crio.Name }
func (crioRuntime) Endpoint() string { return unixScheme + layout.InsideCRIOSock }
