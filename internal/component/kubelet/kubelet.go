// Package kubelet renders the kubelet of a node in a user namespace.
//
// Runs in: child side. It only renders; Ready's check makes one request.
package kubelet

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// Name of the component.
const Name = "kubelet"

// Names of certificates. ClientCertificate is that of the embedded control plane for its own node.
const (
	serverCert        = "kubelet-server"
	ClientCertificate = "kubelet-client"
)

// events is the policy for Events about missing cgroup controllers.
//
//go:embed events.yaml
var events string

// Component returns the kubelet's entry in the catalogue. Its programs include those that the container runtime runs
// for pods.
func Component() component.Component {
	return component.Component{
		Name: Name, VersionSkew: component.NodeVersionSkew,
		Programs: []string{Name, runtime.OCIProgram, "cni/bridge", "cni/host-local", "cni/loopback", "cni/portmap"},
		Ports: func(c *config.NodeConfig) []component.Port {
			const field = "inside.kubeletPort"
			port := c.Inside.KubeletPort
			return []component.Port{
				// The host port is the same, because the Node object cannot have a different one.
				{Proto: "tcp", Number: port, Address: "node", Field: field, Forward: &component.Forward{
					Name: Name, Role: Name, Port: port, Field: field, Instead: fmt.Sprintf("--set %s=%d", field, port+1),
				}},
				component.LoopbackPort(c.Inside.KubeletHealthzPort, "inside.kubeletHealthzPort"),
			}
		},
		HostCertificates: certificates,
		Manifest:         func(component.Env) ([]byte, error) { return []byte(events), nil },
		Needs: func(e component.Env) []supervisor.Need {
			return component.NeedReady(runtime.Of(e.Config).Unit(), component.UnitStaleNode)
		},
		Render: Render, Ready: Ready,
	}
}

func certificates(e component.Env) ([]component.Certificate, error) {
	addresses, err := e.Addresses()
	if err != nil {
		return nil, fmt.Errorf("certificate of the kubelet: %w", err)
	}
	user := pki.NodeUser(e.Config.NodeName)
	server := pki.Client(serverCert, pki.ClusterCA, user, pki.GroupNodes)
	server.Client, server.Server, server.DNSNames = false, true, []string{e.Config.NodeName, pki.Localhost}
	server.Addresses = append(addresses, pki.LoopbackAddresses()...)
	return []component.Certificate{server, pki.Client(ClientCertificate, pki.ClusterCA, user, pki.GroupNodes)}, nil
}

// LabelUnenforced is the node label that lists the cgroup controllers whose limits are not enforced. It is not in the
// kubernetes.io domain, where NodeRestriction would not let a kubelet set it.
const LabelUnenforced = "rootlessnode.dev/unenforced"

// nodeIPs returns the addresses of the Node: one, or one for each family.
func nodeIPs(e component.Env) string {
	if e.NodeIPv6 == "" {
		return e.NodeIP
	}
	return e.NodeIP + "," + e.NodeIPv6
}

// Render returns the kubelet's files and arguments: its configuration and its kubeconfig. The node role writes ResolvConf.
func Render(e component.Env) (component.Rendered, error) {
	settings, configErr := renderConfig(e)
	kubeconfig, kubeconfigErr := Kubeconfig(e)
	if err := errors.Join(configErr, kubeconfigErr); err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	configFile, kubeconfigFile := component.RunFile("kubelet.yaml"), component.RunFile("kubelet.kubeconfig")
	args := []string{
		component.Flag("config", configFile),
		component.Flag("kubeconfig", kubeconfigFile),
		component.Flag("root-dir", layout.InsideKubelet),
		component.Flag("cert-dir", layout.InsideKubeletPKI),
		component.Flag("hostname-override", e.Config.NodeName),
		component.IntFlag("v", component.Verbosity(e.Config.LogLevel)),
	}
	if e.Config.MultiNode() {
		// The node role acts as the cloud provider: it sets the addresses at which other nodes reach this one, which
		// the kubelet cannot detect inside, and creates the Node object without the taint that the kubelet would add
		// and that a node may not remove itself.
		args = append(args, component.Flag("cloud-provider", "external"))
	} else {
		args = append(args, component.Flag("node-ip", nodeIPs(e)))
	}
	plugin, pluginArgs, err := credentialPlugin(e)
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	args = append(args, pluginArgs...)
	if labels := Labels(e); len(labels) > 0 {
		args = append(args, component.Flag("node-labels", joinLabels(labels)))
	}
	return component.Rendered{
		Name: Name,
		Dirs: []component.Dir{
			{Path: layout.InsideKubelet, Mode: 0o755},
			{Path: layout.InsideVolumePlugins, Mode: 0o755},
			{Path: layout.InsidePodLogs, Mode: 0o755},
			{Path: layout.InsideContainerLogs, Mode: 0o755},
		},
		Files: append([]component.File{
			{Path: configFile, Mode: 0o600, Data: settings},
			{Path: kubeconfigFile, Mode: 0o600, Data: kubeconfig},
		}, plugin...),
		Path: e.BinDir(Name),
		Args: args,
	}, nil
}

// Kubeconfig returns the kubelet's kubeconfig, for the embedded control plane or for the cluster that the node joined.
func Kubeconfig(e component.Env) ([]byte, error) {
	return pki.ClientKubeconfig(e, ClientCertificate)
}

// Ready returns a check that requests healthz, which the kubelet serves on loopback without TLS.
func Ready(e component.Env) func(context.Context) error {
	return component.Probe{
		URL: "http://" + component.LoopbackAddress(e.Config.Inside.KubeletHealthzPort) + "/healthz",
	}.Check
}

// Labels returns the labels of the Node object. The kubelet sets them only when it registers the Node for the first
// time; on an existing Node they must be patched.
func Labels(e component.Env) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, e.Config.NodeLabels)
	if component.EmbeddedControlPlane(e.Config) {
		labels[component.LabelVolumes] = component.VolumesHere
	}
	if len(e.Unenforced) > 0 {
		labels[LabelUnenforced] = strings.Join(slices.Sorted(slices.Values(e.Unenforced)), "_")
	}
	return labels
}

func joinLabels(labels map[string]string) string {
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, k+"="+labels[k])
	}
	return strings.Join(pairs, ",")
}

// ResolvConf returns the resolv.conf(5) from which the kubelet makes those of pods: the node's name servers, and the search domains
// and options of the host. The kubelet reads it for each pod.
func ResolvConf(e component.Env, host hostinfo.Resolver) (component.File, error) {
	data, err := resolvConf(e.NameServers, e.Config.Network.Driver == config.DriverNone)
	if err != nil {
		return component.File{}, fmt.Errorf("render the resolv.conf of pods: %w", err)
	}
	for _, line := range []struct {
		keyword string
		words   []string
	}{{"search", host.Search}, {"options", host.Options}} {
		if len(line.words) > 0 {
			data = fmt.Appendf(data, "%s %s\n", line.keyword, strings.Join(line.words, " "))
		}
	}
	return component.File{Path: layout.InsideResolvConf, Mode: 0o644, Data: data}, nil
}

// resolvConf returns the lines with the name servers. Loopback servers are rejected, because pods cannot reach them in their
// own network namespace. allowEmpty permits an empty list.
func resolvConf(servers []string, allowEmpty bool) ([]byte, error) {
	if len(servers) == 0 && !allowEmpty {
		return nil, errors.New("no name servers for pods")
	}
	var b bytes.Buffer
	var errs []error
	for _, s := range servers {
		a, err := netip.ParseAddr(s)
		if err == nil && a.IsLoopback() {
			err = fmt.Errorf("%s is a loopback address, which pods cannot reach", s)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("name server: %w", err))
			continue
		}
		fmt.Fprintf(&b, "nameserver %s\n", a)
	}
	return b.Bytes(), errors.Join(errs...)
}
