// Package flannel renders flanneld, which leases the node's part of the pod network, and the CNI configuration for the
// lease.
//
// Runs in: child side. It only renders; Ready's check makes one request and reads one file.
package flannel

import (
	"context"
	_ "embed" // the manifest
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/kubeproxy"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Name is the name of the component, and Program that of its program.
const (
	Name    = "flannel"
	Program = "flanneld"
)

const (
	certificate = Name
	user        = "rootlessnode:flannel"
)

//go:embed rbac.yaml
var rbac string

// wireguardPort is flannel's default UDP port of the WireGuard backend (flannel, pkg/backend/wireguard).
const wireguardPort = 51820

// Component returns flannel's entry in the catalogue.
func Component() component.Component {
	return component.Component{
		Name: Name, Programs: []string{Program}, OutlivesPods: true, ReadsAddressOnce: true,
		Enabled:      func(c *config.NodeConfig) bool { return c.CNI == config.CNIFlannel },
		Ports:        ports,
		Certificates: []component.Certificate{pki.Client(certificate, pki.ClusterCA, user)},
		Manifest:     func(component.Env) ([]byte, error) { return []byte(rbac), nil },
		Needs:        component.NeedCluster,
		Render:       Render, Ready: Ready, PodNetwork: WriteCNI,
	}
}

// ports returns the port of health checks and the port of the backend, at which the other nodes reach the pods of this
// one. All nodes use the same port, because leases contain no port.
func ports(c *config.NodeConfig) []component.Port {
	network := component.Port{
		Proto: "udp", Number: c.Flannel.VXLANPort, Address: component.AnyAddress, Field: "flannel.vxlanPort",
		Forward: &component.Forward{
			Name: component.ForwardPodNetwork, Role: "pod network", Port: c.Flannel.VXLANPort,
			Instead: "--node-ip with another address of this host, because all nodes use the same port",
		},
	}
	switch c.Flannel.Backend {
	case backendVXLAN:
		network.Forward.Field = network.Field
	case "wireguard":
		network.Number, network.Forward.Port, network.Field = wireguardPort, wireguardPort, ""
	}
	return []component.Port{component.LoopbackPort(c.Inside.FlannelHealthzPort, "inside.flannelHealthzPort"), network}
}

// netConf is flannel's network configuration.
type netConf struct {
	Network        string
	IPv6Network    string `json:",omitempty"`
	EnableIPv4     bool
	EnableIPv6     bool `json:",omitempty"`
	EnableNFTables bool
	Backend        backend
}

type backend struct {
	Type string
	Port int `json:",omitempty"`
}

// AnnotationPublicIP on the Node sets the address at which other nodes reach flannel, if it is not the interface's
// address. The flag --public-ip would also set the source address of VXLAN packets (flannel 0.28.10), and the kernel
// cannot send from an address that it does not have.
const AnnotationPublicIP = "flannel.alpha.coreos.com/public-ip-overwrite"

// Backends.
const backendVXLAN = "vxlan"

// Render returns flanneld's files, arguments and environment. It may start when the API server is ready; it waits
// itself until its Node has a pod CIDR.
func Render(e component.Env) (component.Rendered, error) {
	kubeconfigFile := component.RunFile("flannel.kubeconfig")
	kubeconfig, kubeconfigErr := pki.ClientKubeconfig(e, certificate)
	conf, confErr := json.MarshalIndent(netConfFor(e), "", "  ")
	if err := errors.Join(kubeconfigErr, confErr); err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	args := []string{
		"--kube-subnet-mgr",
		component.Flag("kubeconfig-file", kubeconfigFile),
		component.Flag("iface", e.TapInterface),
		"--ip-masq",
		component.Flag("net-config-path", layout.InsideFlannelConf),
		component.Flag("subnet-file", layout.InsideFlannelEnv),
		component.Flag("healthz-ip", component.Loopback),
		component.IntFlag("healthz-port", e.Config.Inside.FlannelHealthzPort),
		component.IntFlag("v", component.Verbosity(e.Config.LogLevel)),
	}
	return component.Rendered{
		Name: Name,
		Files: []component.File{
			{Path: kubeconfigFile, Mode: 0o600, Data: kubeconfig},
			{Path: layout.InsideFlannelConf, Mode: 0o644, Data: append(conf, '\n')},
		},
		Path: e.BinDir(Program),
		Args: args,
		Env:  []string{"NODE_NAME=" + e.Config.NodeName},
	}, nil
}

func netConfFor(e component.Env) netConf {
	f := e.Config.Flannel
	c := netConf{
		Network: e.Config.Cluster.PodCIDR, EnableIPv4: true,
		EnableNFTables: e.KubeProxyMode == kubeproxy.ModeNFTables,
		Backend:        backend{Type: f.Backend},
	}
	if e.Config.Network.IPv6 {
		c.EnableIPv6, c.IPv6Network = true, e.Config.Cluster.PodCIDRv6
	}
	if f.Backend == backendVXLAN {
		c.Backend.Port = f.VXLANPort
	}
	return c
}

// Ready returns a check that flanneld has a lease and has written the subnet file.
func Ready(e component.Env) func(context.Context) error {
	probe := component.Probe{
		URL: "http://" + component.LoopbackAddress(e.Config.Inside.FlannelHealthzPort) + "/readyz",
	}
	return func(ctx context.Context) error {
		if err := probe.Check(ctx); err != nil {
			return err
		}
		_, err := ReadSubnetEnv(layout.InsideFlannelEnv)
		return err
	}
}

// ReadSubnetEnv reads and parses the subnet file.
func ReadSubnetEnv(path string) (SubnetEnv, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return SubnetEnv{}, fmt.Errorf("subnet file: %w", err)
	}
	env, err := ParseSubnetEnv(data)
	if err != nil {
		return SubnetEnv{}, fmt.Errorf("subnet file %s: %w", path, err)
	}
	return env, nil
}
