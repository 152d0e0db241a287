package preflight

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// route is one IPv4 route of the host.
type route struct {
	prefix netip.Prefix
	device string
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

// checkRoutes compares the node's networks with the routes of the host. If the network of a route is within the network of the
// pods or Services, the node cannot reach it at all: this is a failure. If the route is for a wider network, the node cannot
// reach a part of it: a warning. An overlap with the tap network is a warning too, because it is common: virtual machines of
// QEMU and VirtualBox also use 10.0.2.0/24.
func checkRoutes(_ context.Context, h *host) []Finding {
	b, err := os.ReadFile(h.path("/proc/net/route"))
	if err != nil {
		return unreadable(err)
	}
	c := h.cfg
	type network struct {
		field, cidr, other string
		refuse             bool
	}
	networks := []network{
		{"cluster.podCIDR", c.Cluster.PodCIDR, "10.142.0.0/16", true},
		{"cluster.serviceCIDR", c.Cluster.ServiceCIDR, "10.143.0.0/16", true},
		{"network.cidr", c.Network.CIDR, "10.241.2.0/24", false},
	}
	routes := parseRoutes(b)
	var found []Finding
	for _, n := range networks {
		p, err := netip.ParsePrefix(n.cidr)
		if err != nil {
			continue // reported by Validate
		}
		for _, r := range routes {
			if !p.Overlaps(r.prefix) {
				continue
			}
			f := warn("%s %s overlaps the host's route to %s (%s): addresses in both cannot be reached from the node", n.field, p, r.prefix, r.device)
			if n.refuse && r.prefix.Bits() >= p.Bits() {
				f.Level = LevelFail
			}
			f.Details = map[string]string{"field": n.field, "cidr": p.String(), "route": r.prefix.String(), "device": r.device}
			if f.Level == LevelFail {
				f.fix.add(fmt.Sprintf("# choose a range that overlaps no route of the host: --set %s=%s", n.field, freeRange(n.other, routes)))
			} else {
				f.fix.add(fmt.Sprintf("# if the node must reach these addresses: --set %s=%s", n.field, freeRange(n.other, routes)))
			}
			found = append(found, f)
		}
	}
	return orPass(found, "no network of the host overlaps the node's networks")
}

// freeRange returns first, or a later range of the same size within 10.0.0.0/8 that no route overlaps.
func freeRange(first string, routes []route) string {
	p := netip.MustParsePrefix(first)
	for p.Addr().As4()[0] == 10 {
		overlaps := false
		for _, r := range routes {
			overlaps = overlaps || r.prefix.Overlaps(p) && r.prefix.Bits() > 8
		}
		if !overlaps {
			break
		}
		ip := p.Addr().As4()
		next := binary.BigEndian.Uint32(ip[:]) + 1<<(32-p.Bits())
		binary.BigEndian.PutUint32(ip[:], next)
		p = netip.PrefixFrom(netip.AddrFrom4(ip), p.Bits())
	}
	return p.String()
}
