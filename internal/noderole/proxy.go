package noderole

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/proxyenv"
)

// proxyEnv returns the proxies of the login for components and exec programs, completed with the names and addresses of the cluster, which
// must not use a proxy.
func proxyEnv(e component.Env) ([]string, error) {
	direct, err := clusterHosts(e)
	if err != nil {
		return nil, err
	}
	return proxyenv.Read(os.Getenv).Env(direct), nil
}

// clusterHosts returns the hosts, domains and networks of the cluster and of the node, in the form of NO_PROXY.
func clusterHosts(e component.Env) ([]string, error) {
	c := e.Config
	list := slices.Concat(
		[]string{"localhost", component.Loopback, "::1", ".svc", "." + c.Cluster.Domain, "." + strings.TrimPrefix(config.HostName, "host."), c.Network.CIDR},
		c.PodCIDRs(), c.ServiceCIDRs(), []string{c.Network.HostAddress, e.NodeIP, e.NodeIPv6, e.PublicIP, c.NodeName, e.HostName})
	if c.Joins() {
		server, err := url.Parse(c.Join.Server)
		if err != nil {
			return nil, fmt.Errorf("join.server: %w", err)
		}
		return append(list, server.Hostname()), nil
	}
	names, addresses, err := apiserver.CertificateNames(e)
	for _, a := range addresses {
		names = append(names, a.String())
	}
	return append(list, names...), err
}

// proxyWarnings returns a warning for each proxy at the host's loopback that the node cannot reach.
func proxyWarnings(c *config.NodeConfig) []string {
	var out []string
	for _, port := range proxyenv.Read(os.Getenv).LoopbackPorts() {
		if !slices.Contains(c.HostPorts(), port) {
			out = append(out, fmt.Sprintf("the proxy at port %d of the host's loopback cannot be reached from inside, so that images cannot be pulled: "+
				"add %[1]d to network.hostPorts", port))
		}
	}
	return out
}
