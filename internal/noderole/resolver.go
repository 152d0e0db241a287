package noderole

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/filewatch"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// maxNameServers is MAXNS of resolv.conf(5).
const maxNameServers = 3

// slirpDNSv6 is the forwarder of slirp4netns for name servers with IPv6 addresses. It is the third address of config.TapCIDRv6.
const slirpDNSv6 = "fd00::3"

// nameServers returns the servers that the node and its pods query, in this order: the forwarder of the network driver, which
// uses the first name server of the host also after a change, and the host's other servers, for the case that the first does not
// respond. Servers on the host's loopback cannot be reached from inside. On a host bridge, DHCP has assigned all servers.
func nameServers(cfg *config.NodeConfig, network layout.NetworkInfo, host hostinfo.Resolver) []string {
	if network.Driver == config.DriverLXCUserNIC || len(network.DNS) == 0 {
		return network.DNS
	}
	var v4, v6 []netip.Addr
	for _, s := range host.Servers {
		switch ip, err := netip.ParseAddr(s); {
		case err != nil:
		case ip.Is4():
			v4 = append(v4, ip)
		default:
			v6 = append(v6, ip)
		}
	}
	servers := slices.Clone(network.DNS)
	if network.Driver == config.DriverSlirp && cfg.Network.IPv6 && len(v6) > 0 {
		if len(v4) == 0 {
			servers = nil // the forwarder for IPv4 has no server
		}
		servers = append(servers, slirpDNSv6)
	}
	for _, ip := range v4[min(1, len(v4)):] {
		if !ip.IsLoopback() && !slices.Contains(servers, ip.String()) {
			servers = append(servers, ip.String())
		}
	}
	return servers[:min(len(servers), maxNameServers)]
}

// resolver keeps the resolver configuration of the node and of new pods in line with the host's.
type resolver struct {
	env  component.Env
	host string // Runtime.HostResolver
	own  string // the node's resolv.conf, a bind mount that cannot be replaced
	// write writes the kubelet's file.
	write func([]component.File) error
}

// Run writes the files, and again after each change. Running pods keep the former configuration.
func (r *resolver) Run(ctx context.Context, ready func()) error {
	w, err := filewatch.New(r.host, filewatch.JSON[hostinfo.Resolver])
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		host, err := w.Read()
		if err != nil {
			return fmt.Errorf("read the host's resolver configuration: %w", err)
		}
		if err := r.update(host); err != nil {
			return err
		}
		ready()
		select {
		case <-ctx.Done():
			return nil
		case <-w.Changed():
		}
	}
}

func (r *resolver) update(host hostinfo.Resolver) error {
	f, err := kubelet.ResolvConf(r.env, host)
	if err != nil {
		return err
	}
	if err := r.write([]component.File{f}); err != nil {
		return err
	}
	if err := os.WriteFile(r.own, f.Data, 0o644); err != nil {
		return fmt.Errorf("write the node's resolv.conf: %w", err)
	}
	return nil
}
