// Package controllermanager renders the embedded kube-controller-manager: one instance without leader election, on
// loopback, with a separate service account for each controller.
//
// Runs in: child side. It only renders; Ready's check makes one request.
package controllermanager

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// Name of the component.
const Name = "kube-controller-manager"

const (
	certificate = "controller-manager"
	user        = "system:" + Name
)

// Component returns the controller manager's entry in the catalogue.
func Component() component.Component {
	return component.Component{
		Name: Name, Enabled: component.EmbeddedControlPlane, Programs: []string{Name}, Bindings: []string{user},
		VersionSkew: component.ControlVersionSkew,
		Ports: func(c *config.NodeConfig) []component.Port {
			return []component.Port{component.LoopbackPort(c.Inside.ControllerManagerPort, "inside.controllerManagerPort")}
		},
		Certificates: []component.Certificate{pki.Local(certificate, pki.ClusterCA, user)},
		// It publishes the authority for the pods of all namespaces (root-ca-file).
		ReadsAuthoritiesOnce: []string{pki.ClusterCA},
		Needs: func(component.Env) []supervisor.Need {
			return component.NeedReady(component.UnitRoles, component.UnitStaleNode) // it would restore the last run's endpoints
		},
		Render: Render, Ready: Ready,
	}
}

// Render returns the controller manager's kubeconfig and arguments.
func Render(e component.Env) (component.Rendered, error) {
	content, err := pki.FileKubeconfig(certificate, e.APIServerURL, apiserver.ClusterName(e))
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	kubeconfig := component.RunFile("controller-manager.kubeconfig")
	var args []string
	for _, part := range [][]string{access(e, kubeconfig), signing(e), network(e), controllers(e)} {
		args = append(args, part...)
	}
	return component.Rendered{
		Name:  Name,
		Dirs:  []component.Dir{{Path: layout.InsideVolumePlugins, Mode: 0o755}},
		Files: []component.File{{Path: kubeconfig, Mode: 0o600, Data: content}},
		Path:  e.BinDir(Name),
		Args:  append(args, e.Config.ControlPlane.ControllerManagerExtraArgs...),
	}, nil
}

func access(e component.Env, kubeconfig string) []string {
	flags := append([]string{component.Flag("kubeconfig", kubeconfig)},
		pki.LoopbackFlags(certificate, kubeconfig, e.Config.Inside.ControllerManagerPort)...)
	return append(flags,
		component.Flag("leader-elect", "false"),
		component.Flag("profiling", "false"),
		component.IntFlag("kube-api-qps", e.Config.ControlPlane.ClientQPS),
		component.IntFlag("kube-api-burst", e.Config.ControlPlane.ClientBurst),
		component.IntFlag("v", component.Verbosity(e.Config.LogLevel)))
}

// minIssued is the minimum lifetime of certificates that the cluster issues. A worker's kubelet renews its certificate
// when a tenth of the lifetime is left at the latest, and client-go reads it up to five minutes later.
const minIssued = time.Hour

func signing(e component.Env) []string {
	return []string{
		component.Flag("cluster-signing-duration", max(e.Config.Certificates.Lifetime.D(), minIssued).String()),
		component.Flag("cluster-signing-cert-file", pki.CertFile(pki.ClusterCA)),
		component.Flag("cluster-signing-key-file", pki.KeyFile(pki.ClusterCA)),
		component.Flag("root-ca-file", pki.CertFile(pki.ClusterCA)),
		component.Flag("service-account-private-key-file", pki.ServiceAccountKey()),
	}
}

func network(e component.Env) []string {
	c := e.Config
	mask := "node-cidr-mask-size"
	if len(c.PodCIDRs()) > 1 { // one flag per family; the default for IPv6 is 64
		mask += "-ipv4"
	}
	return []string{
		component.Flag("allocate-node-cidrs", "true"),
		component.Flag("cluster-cidr", strings.Join(c.PodCIDRs(), ",")),
		component.IntFlag(mask, c.Cluster.NodeCIDRMaskSize),
		component.Flag("service-cluster-ip-range", strings.Join(c.ServiceCIDRs(), ",")),
	}
}

func controllers(e component.Env) []string {
	// Bootstrap tokens need two controllers that are disabled by default.
	run := "*,bootstrap-signer-controller,token-cleaner-controller"
	if e.Config.Serves() {
		// The node role approves the certificates of nodes. This controller could approve requests that the node role
		// denies, if an administrator gave nodes or tokens the permissions that kubeadm gives them.
		run += ",-certificatesigningrequest-approving-controller"
	}
	return []string{
		component.Flag("cluster-name", apiserver.ClusterName(e)),
		component.Flag("use-service-account-credentials", "true"),
		component.Flag("controllers", run),
		// The controller manager creates this directory, and cannot create the default one below /usr.
		component.Flag("flex-volume-plugin-dir", layout.InsideVolumePlugins),
	}
}

// Ready returns a check that requests healthz.
func Ready(e component.Env) func(context.Context) error {
	return pki.LoopbackProbe(e.Config.Inside.ControllerManagerPort).Check
}
