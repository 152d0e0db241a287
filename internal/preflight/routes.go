package preflight

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// route is one IPv4 route of the host.
type route struct {
	prefix netip.Prefix
	// device is the name of the interface, or the kind of another reason why the addresses must be reachable.
	device string
}

// hostRoutes returns the routes of the host in all routing tables, also those that policy routing selects, and its name servers. If the
// kernel does not answer, it returns those of the main table.
func (h *host) hostRoutes() ([]route, error) {
	routes, err := h.probes.Routes()
	if err != nil {
		b, err := os.ReadFile(h.path("/proc/net/route"))
		if err != nil {
			return nil, err
		}
		routes = parseRoutes(b)
	}
	servers, _ := h.nameServers() // otherwise reported by check resolv-conf
	for _, s := range servers {
		if ip, err := netip.ParseAddr(s); err == nil && ip.Is4() && !ip.IsLoopback() {
			routes = append(routes, route{netip.PrefixFrom(ip, ip.BitLen()), "name server"})
		}
	}
	return routes, nil
}

// kernelRoutes returns the unicast routes of all tables, without default routes (rtnetlink(7)).
func kernelRoutes() ([]route, error) {
	b, err := syscall.NetlinkRIB(unix.RTM_GETROUTE, unix.AF_INET)
	if err != nil {
		return nil, os.NewSyscallError("netlink", err)
	}
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return nil, os.NewSyscallError("netlink", err)
	}
	var out []route
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg || m.Data[7] != unix.RTN_UNICAST { // rtm_type
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, os.NewSyscallError("netlink", err)
		}
		r := route{device: "no interface"}
		for _, a := range attributes {
			switch a.Attr.Type {
			case unix.RTA_DST:
				if ip, ok := netip.AddrFromSlice(a.Value); ok {
					r.prefix = netip.PrefixFrom(ip, int(m.Data[1])) // rtm_dst_len
				}
			case unix.RTA_OIF:
				if i, err := net.InterfaceByIndex(int(binary.NativeEndian.Uint32(a.Value))); err == nil {
					r.device = i.Name
				}
			}
		}
		if r.prefix.IsValid() && r.prefix.Bits() > 0 {
			out = append(out, r)
		}
	}
	return out, nil
}

// parseRoutes parses /proc/net/route (proc_net(5)): device, destination and mask are columns 0, 1 and 7, and addresses are
// 32-bit words in native byte order, in hexadecimal. It skips the default route and routes that are down.
func parseRoutes(b []byte) []route {
	const flagUp = 0x1 // RTF_UP
	var out []route
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) < 8 {
			continue
		}
		dst, err1 := strconv.ParseUint(f[1], 16, 32)
		flags, err2 := strconv.ParseUint(f[3], 16, 16)
		mask, err3 := strconv.ParseUint(f[7], 16, 32)
		if err1 != nil || err2 != nil || err3 != nil || flags&flagUp == 0 || mask == 0 {
			continue
		}
		var ip [4]byte
		binary.NativeEndian.PutUint32(ip[:], uint32(dst))
		out = append(out, route{netip.PrefixFrom(netip.AddrFrom4(ip), bits.OnesCount32(uint32(mask))), f[0]})
	}
	return out
}

// checkRoutes compares the node's networks with the networks and name servers of the host, which the node cannot reach if their addresses
// are in its own networks. It is a failure if a network of the host is within a network of the node, and a warning if only a part of a
// wider network is unreachable. TapNetwork avoids an overlap with the default of network.cidr.
func checkRoutes(_ context.Context, h *host) []Finding {
	routes, err := h.hostRoutes()
	if err != nil {
		return unreadable(err)
	}
	tap, why := tapNetwork(h.cfg, routes)
	var found []Finding
	for _, o := range overlaps(h.cfg, tap, routes) {
		f := warn("%s %s overlaps the host's route to %s (%s): addresses in both cannot be reached from the node", o.Field, o.Range, o.Route, o.Device)
		hint := "# if the node must reach these addresses: --set "
		if netip.MustParsePrefix(o.Route).Bits() >= netip.MustParsePrefix(o.Range).Bits() {
			f.Level, hint = LevelFail, "# choose a range that overlaps no route of the host: --set "
		}
		f.Details = map[string]string{"field": o.Field, "cidr": o.Range, "route": o.Route, "device": o.Device}
		found = append(found, f.hint(hint+o.Field+"="+o.Free))
	}
	if why != "" {
		return orPass(found, "%s", why)
	}
	return orPass(found, "no network of the host overlaps the node's networks")
}

// RouteOverlaps returns the routes and name servers of the host that overlap the networks of a running node. Runs in: parent.
func RouteOverlaps(c *config.NodeConfig) ([]layout.RouteOverlap, error) {
	routes, err := newHost(context.Background(), Input{Config: c}).hostRoutes()
	if err != nil {
		return nil, fmt.Errorf("read the host's routes: %w", err)
	}
	return overlaps(c, c.Network.CIDR, routes), nil
}

// overlaps returns the routes that overlap a network of the node. tap is the network between the node and the host.
func overlaps(c *config.NodeConfig, tap string, routes []route) []layout.RouteOverlap {
	var found []layout.RouteOverlap
	for _, n := range []struct{ field, cidr, other string }{
		{"cluster.podCIDR", c.Cluster.PodCIDR, "10.142.0.0/16"},
		{"cluster.serviceCIDR", c.Cluster.ServiceCIDR, "10.143.0.0/16"},
		{"network.cidr", tap, otherTaps()[0]},
	} {
		p, err := netip.ParsePrefix(n.cidr)
		if err != nil {
			continue // reported by Validate
		}
		free := freeRange([]string{n.other}, append(ownNetworks(c, n.field), routes...))
		for _, r := range routes {
			if !p.Overlaps(r.prefix) {
				continue
			}
			found = append(found, layout.RouteOverlap{
				Field: n.field, Range: p.String(), Route: r.prefix.String(), Device: r.device, Free: free,
			})
		}
	}
	return found
}

// otherTaps returns ranges for network.cidr if its default is in use on the host: one in each private block (RFC 1918), and one for
// benchmarks (RFC 2544).
func otherTaps() []string {
	return []string{"10.241.2.0/24", "172.31.241.0/24", "192.168.241.0/24", "198.18.241.0/24"}
}

// TapNetwork returns the network between the node and the host: network.cidr, or a free range if that is the default and overlaps a
// network of the host. The default is also that of QEMU and VirtualBox, so that it is in use in many virtual machines. Runs in: parent.
func TapNetwork(c *config.NodeConfig) string {
	routes, err := newHost(context.Background(), Input{Config: c}).hostRoutes()
	if err != nil {
		return c.Network.CIDR // reported by the preflight
	}
	cidr, _ := tapNetwork(c, routes)
	return cidr
}

// tapNetwork is TapNetwork for the given routes. why describes the choice of another range.
func tapNetwork(c *config.NodeConfig, routes []route) (cidr, why string) {
	p, err := netip.ParsePrefix(c.Network.CIDR)
	if err != nil || c.Network.CIDR != config.Default().Network.CIDR || !needsTun(c) {
		return c.Network.CIDR, ""
	}
	for _, r := range routes {
		if !p.Overlaps(r.prefix) {
			continue
		}
		free := freeRange(otherTaps(), append(ownNetworks(c, "network.cidr"), routes...))
		return free, fmt.Sprintf("the node uses %s instead of the default of network.cidr, %s, which overlaps the host's route to %s (%s)", free, p, r.prefix, r.device)
	}
	return c.Network.CIDR, ""
}

// ownNetworks returns the networks of the node except that of a field.
func ownNetworks(c *config.NodeConfig, except string) []route {
	var own []route
	for field, cidr := range map[string]string{
		"cluster.podCIDR": c.Cluster.PodCIDR, "cluster.serviceCIDR": c.Cluster.ServiceCIDR, "network.cidr": c.Network.CIDR,
	} {
		if p, err := netip.ParsePrefix(cidr); err == nil && field != except {
			own = append(own, route{p, field})
		}
	}
	return own
}

// freeRange returns the first of ranges, or a later range of the same size in its private block, that overlaps none of taken. If there is
// no such range because of very wide routes, such as those of a VPN, it ignores routes wider than a /9.
func freeRange(ranges []string, taken []route) string {
	const wide, tries = 9, 200
	for _, least := range []int{0, wide} {
		for _, first := range ranges {
			p := netip.MustParsePrefix(first)
			for range tries {
				if !overlapsAny(p, taken, least) {
					return p.String()
				}
				ip := p.Addr().As4()
				binary.BigEndian.PutUint32(ip[:], binary.BigEndian.Uint32(ip[:])+1<<(32-p.Bits()))
				next := netip.PrefixFrom(netip.AddrFrom4(ip), p.Bits())
				if next.Addr().IsPrivate() != p.Addr().IsPrivate() {
					break
				}
				p = next
			}
		}
	}
	return ranges[0]
}

// overlapsAny reports whether p overlaps a route with at least the given prefix length.
func overlapsAny(p netip.Prefix, taken []route, least int) bool {
	for _, r := range taken {
		if r.prefix.Bits() >= least && r.prefix.Overlaps(p) {
			return true
		}
	}
	return false
}
