// Command kubernetes is a multi-call binary with the Kubernetes programs that a
// node needs: kubelet, kube-proxy and kubectl, and the control plane's
// kube-apiserver, kube-controller-manager, kube-scheduler and metrics-server. They
// share almost all of their code, so one file is much smaller than seven.
//
// The name by which the binary is called selects the program (a link named
// "kubelet" runs the kubelet), or else the first argument. Each program is
// upstream's unchanged command, except metrics-server (package metricsserver). For any other name the binary lists the programs
// and exits with 2.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	_ "time/tzdata" // CronJob time zones, in the API server and controller manager, on hosts without a zone database

	"github.com/rootlessnode/rootlessnode/components/kubernetes/internal/dispatch"
	"github.com/rootlessnode/rootlessnode/components/kubernetes/internal/metricsserver"
	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // credential plugins for kubectl
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // the build_info metric
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs are the functions that run each program with the arguments in os.Args
// and return its exit code.
var programs = map[string]func() int{
	"kubelet":                 serve(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kube-proxy":              serve(proxy.NewProxyCommand),
	"kubectl":                 kubectl,
	"kube-apiserver":          serve(apiserver.NewAPIServerCommand),
	"kube-controller-manager": serve(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          serve(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"metrics-server":          serve(metricsserver.NewCommand),
}

// serve creates the command only when it is run, because creating a command
// registers its feature gates in a registry that all of them share.
func serve(newCommand func() *cobra.Command) func() int {
	return func() int { return cli.Run(newCommand()) }
}

// kubectl sets its verbosity before the command is created, because creating it
// already searches plugins and reads the user's preferences.
func kubectl() int {
	// The command's flag parsing reports an invalid verbosity.
	_, _ = logs.GlogSetter(kubectlcmd.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints and exits with kubectl's own code
		return 1
	}
	return 0
}

func main() {
	names := slices.Sorted(maps.Keys(programs))
	name, args, ok := dispatch.Choose(os.Args, names)
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: kubernetes PROGRAM [ARGUMENT...], or a link to it named after the program; programs:")
		for _, name := range names {
			fmt.Fprintln(os.Stderr, "  "+name)
		}
		os.Exit(2)
	}
	os.Args = args
	os.Exit(programs[name]())
}
