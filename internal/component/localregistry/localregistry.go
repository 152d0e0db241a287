// Package localregistry renders the registry that a node runs for its own images. The host pushes to it through a forwarded port of its
// loopback, and the container runtime pulls from it at the node's loopback, both as localhost:PORT.
//
// Runs in: child side. It only renders; Ready's check makes one request.
package localregistry

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/manifest"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Name of the component and of its program.
const Name = "local-registry"

const field = "localRegistry.port"

// Component returns the registry's entry in the catalogue.
func Component() component.Component {
	return component.Component{
		Name: Name, Programs: []string{Name}, Enabled: func(c *config.NodeConfig) bool { return c.LocalRegistry.Enabled },
		Ports: func(c *config.NodeConfig) []component.Port {
			port := c.LocalRegistry.Port
			// The number is the same on the host, because it is a part of the names of images.
			return []component.Port{{Proto: "tcp", Number: port, Address: "node", Field: field, Forward: &component.Forward{
				Name: Name, Role: "local registry", Port: port, Field: field, Address: netip.MustParseAddr(component.Loopback),
				Instead: fmt.Sprintf("--set %s=%d", field, port+1),
			}}}
		},
		Manifest: Manifest, Render: Render, Ready: Ready,
	}
}

// Render returns the arguments. The registry serves the node itself and the port driver, whose connections come from the tap network.
func Render(e component.Env) (component.Rendered, error) {
	port, level := e.Config.LocalRegistry.Port, e.Config.LogLevel
	if level == "info" { // at this level, the registry logs each request
		level = "warning"
	}
	return component.Rendered{
		Name: Name,
		Dirs: []component.Dir{{Path: layout.InsideLocalRegistry, Mode: 0o700}},
		Path: e.BinDir(Name),
		Args: []string{
			component.Flag("dir", layout.InsideLocalRegistry),
			component.Flag("listen", component.LoopbackAddress(port)),
			component.Flag("listen", net.JoinHostPort(e.NodeIP, strconv.Itoa(port))),
			component.Flag("allow", e.NodeIP+"/32"),
			component.Flag("allow", e.Config.Network.CIDR),
			component.Flag("log-level", level),
		},
	}, nil
}

// Ready returns a check that requests the root of the registry API.
func Ready(e component.Env) func(context.Context) error {
	return component.Probe{URL: "http://" + component.LoopbackAddress(e.Config.LocalRegistry.Port) + "/v2/"}.Check
}

// Manifest returns the ConfigMap in which development tools (Tilt, Skaffold, ctlptl) look for the registry of a cluster (KEP-1755).
func Manifest(e component.Env) ([]byte, error) {
	const namespace = "kube-public"
	host := net.JoinHostPort("localhost", strconv.Itoa(e.Config.LocalRegistry.Port))
	return manifest.Objects{
		{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}, // the API server creates it later
		{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "local-registry-hosting", "namespace": namespace},
			"data": map[string]any{"localRegistryHosting.v1": fmt.Sprintf("host: %q\nhostFromContainerRuntime: %q\n", host, host)},
		},
	}.Encode()
}
