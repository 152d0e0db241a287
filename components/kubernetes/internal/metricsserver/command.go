// Package metricsserver is the command of metrics-server, as a program of the multi-call binary. metrics-server uses the
// same libraries as the other programs, so it adds 2 MB to their file, and would have 50 MB as a program of its own.
//
// It is upstream's server with upstream's flags, and three differences:
//
//   - The names in its OpenAPI definitions are those that the current libraries of Kubernetes expect.
//   - --version prints the version of metrics-server.
//   - It can complete the metrics of a kubelet whose node has no memory controller; see package nodeusage.
package metricsserver

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	"github.com/rootlessnode/rootlessnode/components/kubernetes/internal/nodeusage"
	"github.com/spf13/cobra"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/metrics-server/cmd/metrics-server/app/options"
	"sigs.k8s.io/metrics-server/pkg/api"
	generatedopenapi "sigs.k8s.io/metrics-server/pkg/api/generated/openapi"
)

// module is the Go module whose version is the version of the program.
const module = "sigs.k8s.io/metrics-server"

// NewCommand returns the command. It ends with the first SIGTERM or SIGINT.
func NewCommand() *cobra.Command {
	o := options.NewOptions()
	var source nodeusage.Source
	cmd := &cobra.Command{
		Use: "metrics-server", Short: "Collect the resource usage of pods and nodes, and serve it to kubectl top and autoscalers", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.ShowVersion {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "metrics-server", version())
				return err
			}
			cmd.SilenceUsage = true
			return run(o, source)
		},
	}
	sets := o.Flags()
	for _, set := range sets.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	cmd.Flags().StringVar(&source.Node, "usage-node", "", "The name of the node whose kubelet's metrics are completed with those from --usage-socket")
	cmd.Flags().StringVar(&source.Socket, "usage-socket", "", "The path of the socket that serves the resource usage of --usage-node")
	return cmd
}

func run(o *options.Options, source nodeusage.Source) error {
	if err := errors.Join(append(o.Validate(), source.Validate())...); err != nil {
		return err
	}
	config, err := o.ServerConfig()
	if err != nil {
		return err
	}
	setOpenAPI(config.Apiserver)
	if source.Socket != "" {
		config.Kubelet.Client.Wrap(func(kubelets http.RoundTripper) http.RoundTripper {
			return source.Complete(kubelets, func(err error) { klog.ErrorS(err, "Metrics of the kubelet are incomplete") })
		})
	}
	server, err := config.Complete()
	if err != nil {
		return err
	}
	return server.RunUntil(genericapiserver.SetupSignalHandler())
}

// setOpenAPI replaces the definitions, whose names metrics-server 0.8 has in the form of Kubernetes 1.33.
func setOpenAPI(c *genericapiserver.Config) {
	namer := openapinamer.NewDefinitionNamer(api.Scheme)
	title, v := c.OpenAPIConfig.Info.Title, version()
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	c.OpenAPIConfig.Info.Title, c.OpenAPIConfig.Info.Version = title, v
	c.OpenAPIV3Config.Info.Title, c.OpenAPIV3Config.Info.Version = title, v
}

// definitions returns upstream's definitions under the names that types now have (OpenAPIModelName), such as
// io.k8s.metrics.pkg.apis.metrics.v1beta1.NodeMetrics, in place of paths of Go packages.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	named := map[string]common.OpenAPIDefinition{}
	for path, d := range generatedopenapi.GetOpenAPIDefinitions(func(path string) spec.Ref { return ref(util.ToRESTFriendlyName(path)) }) {
		for i, dependency := range d.Dependencies {
			d.Dependencies[i] = util.ToRESTFriendlyName(dependency)
		}
		named[util.ToRESTFriendlyName(path)] = d
	}
	return named
}

// version returns the version of the module that is linked.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == module {
				return m.Version
			}
		}
	}
	return "unknown"
}
