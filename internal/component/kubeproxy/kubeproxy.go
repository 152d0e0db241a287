// Package kubeproxy renders kube-proxy for a node in a user namespace, where the limits of conntrack cannot be written.
//
// Runs in: child side. It only renders; Ready's check makes one request.
package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// Name of the component.
const Name = "kube-proxy"

// certificate is the name of the certificate. A worker uses the node's instead.
const certificate = Name

// Component returns kube-proxy's entry in the catalogue.
func Component() component.Component {
	return component.Component{
		Name: Name, Programs: []string{Name}, VersionSkew: component.NodeVersionSkew, Bindings: []string{"system:node-proxier"},
		Ports: func(c *config.NodeConfig) []component.Port {
			return []component.Port{
				component.LoopbackPort(c.Inside.KubeProxyMetricsPort, "inside.kubeProxyMetricsPort"),
				component.LoopbackPort(c.Inside.KubeProxyHealthzPort, "inside.kubeProxyHealthzPort"),
			}
		},
		Certificates: []component.Certificate{pki.Client(certificate, pki.ClusterCA, "system:"+Name)},
		Needs: func(e component.Env) []supervisor.Need {
			needs := component.NeedReady(component.UnitRegistered)
			if !e.Config.Joins() {
				needs = append(needs, component.NeedReady(component.UnitRoles)...)
			}
			return needs
		},
		Render: Render, Ready: Ready,
	}
}

// Modes.
const (
	ModeNFTables = "nftables"
	ModeIPTables = "iptables"
)

// The part of KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) that is set here. nodePortAddresses is not set
// if the Node's address is the one inside, because node ports listen there by default, and the port driver connects
// there.
type configuration struct {
	component.TypeMeta `json:",inline"`
	ClientConnection   clientConnection `json:"clientConnection"`
	HostnameOverride   string           `json:"hostnameOverride"`
	HealthzBindAddress string           `json:"healthzBindAddress"`
	MetricsBindAddress string           `json:"metricsBindAddress"`
	Mode               string           `json:"mode"`
	ClusterCIDR        string           `json:"clusterCIDR"`
	DetectLocalMode    string           `json:"detectLocalMode"`
	OOMScoreAdj        int              `json:"oomScoreAdj"`
	NodePortAddresses  []string         `json:"nodePortAddresses,omitempty"`
	Conntrack          conntrack        `json:"conntrack"`
	NFTables           backend          `json:"nftables"`
	IPTables           backend          `json:"iptables"`
}

// backend has the settings of a mode.
type backend struct {
	MinSyncPeriod string `json:"minSyncPeriod"`
}

// minSyncPeriod is the least time between two changes of the rules. Until then, connections go to pods that have ended. The
// default of one second is for nodes with thousands of Services.
const minSyncPeriod = "100ms"

type clientConnection struct {
	Kubeconfig string `json:"kubeconfig"`
	QPS        int    `json:"qps"`
	Burst      int    `json:"burst"`
}

type conntrack struct {
	MaxPerCore            int    `json:"maxPerCore"`
	Min                   int    `json:"min"`
	TCPEstablishedTimeout string `json:"tcpEstablishedTimeout"`
	TCPCloseWaitTimeout   string `json:"tcpCloseWaitTimeout"`
	TCPBeLiberal          bool   `json:"tcpBeLiberal"`
	UDPTimeout            string `json:"udpTimeout"`
	UDPStreamTimeout      string `json:"udpStreamTimeout"`
}

// keepTimeout makes kube-proxy keep a conntrack timeout.
const keepTimeout = "0s"

// Render returns kube-proxy's configuration, kubeconfig and arguments.
func Render(e component.Env) (component.Rendered, error) {
	if e.KubeProxyMode != ModeNFTables && e.KubeProxyMode != ModeIPTables {
		return component.Rendered{}, fmt.Errorf("render %s: mode %q is neither %s nor %s", Name, e.KubeProxyMode, ModeNFTables, ModeIPTables)
	}
	kubeconfigFile, configFile := component.RunFile("kube-proxy.kubeconfig"), component.RunFile("kube-proxy.yaml")
	kubeconfig, kubeconfigErr := pki.ClientKubeconfig(e, certificate)
	settings, configErr := component.YAML(configFor(e, kubeconfigFile))
	if err := errors.Join(kubeconfigErr, configErr); err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	return component.Rendered{
		Name: Name,
		Files: []component.File{
			{Path: kubeconfigFile, Mode: 0o600, Data: kubeconfig},
			{Path: configFile, Mode: 0o600, Data: settings},
		},
		Path: e.BinDir(Name),
		Args: []string{
			component.Flag("config", configFile),
			component.IntFlag("v", component.Verbosity(e.Config.LogLevel)),
		},
	}, nil
}

func configFor(e component.Env, kubeconfig string) configuration {
	in, cp := e.Config.Inside, e.Config.ControlPlane
	var inside []string
	if e.Config.MultiNode() {
		inside = []string{e.NodeIP + "/32"}
	}
	return configuration{
		NodePortAddresses:  inside,
		TypeMeta:           component.TypeMeta{APIVersion: "kubeproxy.config.k8s.io/v1alpha1", Kind: "KubeProxyConfiguration"},
		ClientConnection:   clientConnection{Kubeconfig: kubeconfig, QPS: cp.ClientQPS, Burst: cp.ClientBurst},
		HostnameOverride:   e.Config.NodeName,
		HealthzBindAddress: component.LoopbackAddress(in.KubeProxyHealthzPort),
		MetricsBindAddress: component.LoopbackAddress(in.KubeProxyMetricsPort),
		Mode:               e.KubeProxyMode,
		ClusterCIDR:        strings.Join(e.Config.PodCIDRs(), ","),
		DetectLocalMode:    "ClusterCIDR",
		NFTables:           backend{MinSyncPeriod: minSyncPeriod},
		IPTables:           backend{MinSyncPeriod: minSyncPeriod},
		// nf_conntrack_max is read-only outside the initial network namespace; on older kernels the timeouts are too.
		Conntrack: conntrack{
			TCPEstablishedTimeout: keepTimeout, TCPCloseWaitTimeout: keepTimeout, UDPTimeout: keepTimeout, UDPStreamTimeout: keepTimeout,
		},
	}
}

// Ready returns a check that requests healthz.
func Ready(e component.Env) func(context.Context) error {
	return component.Probe{
		URL: "http://" + component.LoopbackAddress(e.Config.Inside.KubeProxyHealthzPort) + "/healthz",
	}.Check
}
