package noderole

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// hasIPv6Uplink reports whether the network driver connects to other networks with IPv6.
func hasIPv6Uplink(driver string) bool {
	return driver == config.DriverSlirp || driver == config.DriverPasta
}

// nodeIPv6 returns the node's IPv6 address. On a host bridge (lxc-user-nic), which other nodes may share, it is derived
// from the IPv4 address that DHCP assigned. With other drivers it is constant, because no other node shares the
// network.
func nodeIPv6(driver, ipv4 string) (netip.Addr, error) {
	if driver != config.DriverLXCUserNIC {
		return netip.ParseAddr(config.NodeIPv6)
	}
	v4, err := netip.ParseAddr(ipv4)
	if err != nil || !v4.Is4() {
		return netip.Addr{}, fmt.Errorf("the node's address %q is not an IPv4 address", ipv4)
	}
	p, err := netip.ParsePrefix(config.TapCIDRv6)
	if err != nil {
		return netip.Addr{}, err
	}
	a, low := p.Addr().As16(), v4.As4()
	copy(a[len(a)-len(low):], low[:])
	return netip.AddrFrom16(a), nil
}

// ensureIPv6 sets the IPv6 address of the node's uplink, and the default route if the driver supports IPv6. Addresses
// that slirp4netns advertises are removed, because their lifetime could expire while flannel uses them, and because a
// router does not accept router advertisements anyway.
func ensureIPv6(network layout.NetworkInfo) (netip.Addr, error) {
	addr, err := nodeIPv6(network.Driver, network.IP)
	if err != nil {
		return addr, fmt.Errorf("network.ipv6: %w", err)
	}
	prefix, err := netip.ParsePrefix(config.TapCIDRv6)
	if err != nil {
		return addr, err
	}
	steps := [][]string{
		// nodad: the address is usable at once; no other host on the link can have it.
		{"addr", "replace", netip.PrefixFrom(addr, prefix.Bits()).String(), "dev", network.Interface, "nodad"},
	}
	if hasIPv6Uplink(network.Driver) {
		steps = append([][]string{{"addr", "flush", "dev", network.Interface, "scope", "global"}}, steps...)
		steps = append(steps, []string{"route", "replace", "default", "via", config.TapGatewayV6, "dev", network.Interface})
	}
	for _, args := range steps {
		out, err := exec.Command("ip", append([]string{"-6"}, args...)...).CombinedOutput()
		if err != nil {
			return addr, fmt.Errorf("ip -6 %s: %w", strings.Join(args, " "), proc.Failure(err, out))
		}
	}
	return addr, nil
}
