// Package coredns renders the cluster DNS: a Deployment of CoreDNS and its other objects, as manifests for the API
// server. It is an add-on that runs as a pod, not a component.
//
// Runs in: either side. It only renders.
package coredns

import (
	"crypto/sha256"
	_ "embed" // the manifests
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/manifest"
)

// Objects of CoreDNS. Users may create Custom, a ConfigMap with parts of the Corefile: *.override inside its server block, *.server
// as further server blocks.
const (
	Namespace  = "kube-system"
	Deployment = "coredns"
	Service    = "kube-dns"
	Selector   = "k8s-app=kube-dns" // of the pods
	Custom     = "coredns-custom"
)

// annotationConfig is the annotation of the pods for a hash of their configuration. The Deployment replaces the pods when it
// changes, and keeps the old ones until a new one is ready, so that DNS survives an invalid Corefile.
const annotationConfig = "rootlessnode.dev/config"

//go:embed coredns.yaml
var base []byte

// Component returns CoreDNS's entry in the catalogue. It runs as a pod.
func Component() component.Component {
	return component.Component{
		Name:     Deployment,
		Enabled:  func(c *config.NodeConfig) bool { return component.EmbeddedControlPlane(c) && c.ControlPlane.CoreDNS },
		Image:    func(c *config.NodeConfig) string { return c.ControlPlane.CoreDNSImage },
		Manifest: Manifests,
	}
}

// Manifests returns the add-on's objects as a YAML stream.
func Manifests(e component.Env) ([]byte, error) {
	data, err := render(e)
	if err != nil {
		return nil, fmt.Errorf("render CoreDNS: %w", err)
	}
	return data, nil
}

func render(e component.Env) ([]byte, error) {
	address, err := netip.ParseAddr(e.Config.Cluster.DNSAddress)
	if err != nil {
		return nil, fmt.Errorf("cluster.dnsAddress: %w", err)
	}
	corefile, err := Corefile(e.Config.Cluster.Domain, e.Config.Network.HostAddress, len(e.NameServers) > 0)
	if err != nil {
		return nil, err
	}
	objects, err := manifest.Decode(base)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		objects.Set("ConfigMap", Deployment, corefile, "data", "Corefile"),
		objects.Set("Deployment", Deployment, e.Config.ControlPlane.CoreDNSImage, "spec", "template", "spec", "containers", "0", "image"),
		objects.Set("Deployment", Deployment, map[string]any{annotationConfig: hash(corefile, e.CustomDNS)}, "spec", "template", "metadata", "annotations"),
		objects.Set("Service", Service, address.String(), "spec", "clusterIP"),
		objects.Set("Service", Service, []any{address.String()}, "spec", "clusterIPs"),
	); err != nil {
		return nil, err
	}
	return objects.Encode()
}

// hash returns a hash of CoreDNS's configuration.
func hash(corefile string, custom map[string]string) string {
	text := strconv.Quote(corefile)
	for _, key := range slices.Sorted(maps.Keys(custom)) {
		text += strconv.Quote(key) + strconv.Quote(custom[key])
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// Corefile returns CoreDNS's configuration for a cluster domain, with an entry for config.HostName at hostAddress. If
// forward is set, other names are resolved by the servers in the pod's resolv.conf, which the kubelet writes. It must
// not be set if there are no servers, because CoreDNS would not start.
func Corefile(domain, hostAddress string, forward bool) (string, error) {
	if domain == "" || strings.ContainsAny(domain, " \t\r\n{}\"#") {
		return "", fmt.Errorf("cluster.domain: invalid domain %q", domain)
	}
	if _, err := netip.ParseAddr(hostAddress); err != nil {
		return "", fmt.Errorf("network.hostAddress: %w", err)
	}
	lines := []string{
		".:53 {",
		"    errors",
		"    health",
		"    ready",
		"    hosts {",
		"        " + hostAddress + " " + config.HostName,
		"        fallthrough",
		"    }",
		"    kubernetes " + domain + " in-addr.arpa ip6.arpa {",
		"        pods insecure",
		"        fallthrough in-addr.arpa ip6.arpa",
		"        ttl 30",
		"    }",
		"    prometheus :9153",
		"    forward . /etc/resolv.conf {",
		"        policy sequential", // as resolvers do: the servers may know different names
		"    }",
		"    cache 30",
		"    loop",
		"    reload",
		"    loadbalance",
		"    import /etc/coredns/custom/*.override",
		"}",
		"import /etc/coredns/custom/*.server",
		"",
	}
	if !forward {
		first := slices.Index(lines, "    forward . /etc/resolv.conf {")
		lines = slices.Delete(lines, first, first+3)
		lines = slices.DeleteFunc(lines, func(l string) bool { return l == "    loop" })
	}
	return strings.Join(lines, "\n"), nil
}
