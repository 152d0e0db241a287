// Package metricsserver renders metrics-server, which serves the resource usage of pods and nodes to `kubectl top` and to
// autoscalers, as a part of the Kubernetes API (metrics.k8s.io).
//
// It runs next to the API server and listens on loopback. The API server reaches it through a Service of type ExternalName,
// so no pod and no other node can connect to it, and it does not depend on kube-proxy. All parties verify certificates:
// metrics-server those of kubelets and of the API server as its client, the API server that of metrics-server.
//
// Runs in: child side. It only renders; Ready's check makes one request.
package metricsserver

import (
	"context"
	_ "embed" // the manifest
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/manifest"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/proxyenv"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// Name of the component and of its program.
const Name = "metrics-server"

const (
	certificate = Name
	user        = "rootlessnode:metrics-server"
	// service is the Service in the namespace kube-system, and serviceName its name for the API server.
	service     = "rootlessnode-metrics-server"
	serviceName = service + ".kube-system.svc"
	apiService  = "v1beta1.metrics.k8s.io"
)

//go:embed objects.yaml
var objects []byte

// Component returns metrics-server's entry in the catalogue.
func Component() component.Component {
	return component.Component{
		Name: Name, Programs: []string{Name}, Enabled: enabled, Optional: true,
		Ports: func(c *config.NodeConfig) []component.Port {
			return []component.Port{component.LoopbackPort(c.Inside.MetricsServerPort, "inside.metricsServerPort")}
		},
		Certificates: []component.Certificate{certificateOf()},
		Manifest:     Manifest,
		// Without a Node object, the first collection would be empty, and the next one an interval later.
		Needs: func(component.Env) []supervisor.Need {
			return component.NeedReady(component.UnitAddons, component.UnitRegistered)
		},
		Render: Render, Ready: Ready,
	}
}

func enabled(c *config.NodeConfig) bool {
	return component.EmbeddedControlPlane(c) && c.Metrics.Enabled
}

func certificateOf() component.Certificate {
	c := pki.Local(certificate, pki.ClusterCA, user)
	c.DNSNames = append(c.DNSNames, serviceName)
	return c
}

// requestTimeout is the time limit for a request to a kubelet. metrics-server requires less than nine tenths of the interval.
func requestTimeout(interval time.Duration) time.Duration { return interval * 8 / 10 }

// Render returns metrics-server's kubeconfig and arguments.
func Render(e component.Env) (component.Rendered, error) {
	content, err := pki.FileKubeconfig(certificate, e.APIServerURL, apiserver.ClusterName(e))
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	kubeconfig := component.RunFile("metrics-server.kubeconfig")
	interval := e.Config.Metrics.Interval.D()
	return component.Rendered{
		Name:  Name,
		Files: []component.File{{Path: kubeconfig, Mode: 0o600, Data: content}},
		Path:  e.BinDir(Name),
		Args: slices.Concat(
			[]string{component.Flag("kubeconfig", kubeconfig)},
			pki.LoopbackFlags(certificate, kubeconfig, e.Config.Inside.MetricsServerPort),
			[]string{
				component.Flag("kubelet-preferred-address-types", "InternalIP,ExternalIP"),
				component.Flag("kubelet-use-node-status-port", "true"),
				component.Flag("kubelet-request-timeout", requestTimeout(interval).String()),
				component.Flag("metric-resolution", interval.String()),
				component.IntFlag("v", component.Verbosity(e.Config.LogLevel)),
			},
			usage(e),
		),
		// It connects to the kubelets of other nodes, whose addresses are not known in advance, and must not do so through a proxy.
		Env: proxyenv.None(),
	}, nil
}

// usage returns the flags with which metrics-server gets the memory of this node's containers from the node role, because the
// kubelet cannot measure it without the memory controller.
func usage(e component.Env) []string {
	if !slices.Contains(e.Unenforced, "memory") {
		return nil
	}
	return []string{component.Flag("usage-node", e.Config.NodeName), component.Flag("usage-socket", e.StatusSocket)}
}

// Manifest returns the objects of metrics-server as a YAML stream.
func Manifest(e component.Env) ([]byte, error) {
	all, err := manifest.Decode(objects)
	if err != nil {
		return nil, err
	}
	port := e.Config.Inside.MetricsServerPort
	if err := errors.Join(
		all.Set("APIService", apiService, base64.StdEncoding.EncodeToString(e.ClusterCA), "spec", "caBundle"),
		all.Set("APIService", apiService, port, "spec", "service", "port"),
		all.Set("Service", service, port, "spec", "ports", "0", "port"),
	); err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", Name, err)
	}
	return all.Encode()
}

// Obsolete returns the objects to delete if the node has no metrics-server, for kubeapi.Client.Remove. The last object exists
// only if the node created the others.
func Obsolete() []byte { return objects }

// Ready returns a check that requests healthz.
func Ready(e component.Env) func(context.Context) error {
	return pki.LoopbackProbe(e.Config.Inside.MetricsServerPort).Check
}
