package child

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
)

// leadsOutV6 tells whether the network driver has IPv6 towards the world.
func leadsOutV6(driver string) bool {
	return driver == config.DriverSlirp || driver == config.DriverPasta
}

// nodeIPv6 is the node's IPv6 address. On a bridge of the host (lxc-user-nic) there may be more nodes, so that it follows
// from the address that DHCP gave; elsewhere the node is alone with its driver.
func nodeIPv6(driver, ipv4 string) (netip.Addr, error) {
	if driver != config.DriverLXCUserNIC {
		return netip.ParseAddr(config.NodeIPv6)
	}
	v4, err := netip.ParseAddr(ipv4)
	if err != nil || !v4.Is4() {
		return netip.Addr{}, fmt.Errorf("the node's address %q is not one of IPv4", ipv4)
	}
	p, err := netip.ParsePrefix(config.TapCIDRv6)
	if err != nil {
		return netip.Addr{}, err
	}
	a, low := p.Addr().As16(), v4.As4()
	copy(a[len(a)-len(low):], low[:])
	return netip.AddrFrom16(a), nil
}

// ensureIPv6 gives the node's uplink its IPv6 address, and the way out where there is one. What slirp4netns advertises is
// not taken: an address with a lifetime would end under flannel, and a router does not listen to other routers anyway.
func (n *nodeRole) ensureIPv6() error {
	if !n.cfg.Network.IPv6 {
		return nil
	}
	h := n.handover.Network
	addr, err := nodeIPv6(h.Driver, h.IP)
	if err != nil {
		return fmt.Errorf("network.ipv6: %w", err)
	}
	prefix, err := netip.ParsePrefix(config.TapCIDRv6)
	if err != nil {
		return err
	}
	steps := [][]string{
		// nodad: the address is to be used at once, and nobody else is there to have it.
		{"addr", "replace", netip.PrefixFrom(addr, prefix.Bits()).String(), "dev", h.Interface, "nodad"},
	}
	if leadsOutV6(h.Driver) {
		steps = append([][]string{{"addr", "flush", "dev", h.Interface, "scope", "global"}}, steps...)
		steps = append(steps, []string{"route", "replace", "default", "via", config.TapGatewayV6, "dev", h.Interface})
	}
	for _, args := range steps {
		out, err := exec.Command("ip", append([]string{"-6"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip -6 %s: %w", strings.Join(args, " "), errors.Join(err, errors.New(string(bytes.TrimSpace(out)))))
		}
	}
	n.ipv6 = addr
	return nil
}
