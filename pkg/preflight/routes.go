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

// parseRoutes reads /proc/net/route (proc_net(5)): device, destination and mask in columns 0, 1 and 7, the addresses as
// the machine's own 32-bit words in hexadecimal. The default route, and routes that are down, are left out.
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

// checkRoutes compares the node's networks with those the host is in. A network inside the pods' or Services' own would
// be out of reach from the node, and that is refused; a wider one loses a part, and the tap network is meant to hide
// what lies behind it (virtual machines of QEMU and VirtualBox are in the same 10.0.2.0/24): warnings.
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
			continue // Validate says so
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
				f.fix.add(fmt.Sprintf("# choose a range that the host is not in: --set %s=%s", n.field, freeRange(n.other, routes)))
			} else {
				f.fix.add(fmt.Sprintf("# if you need those addresses: --set %s=%s", n.field, freeRange(n.other, routes)))
			}
			found = append(found, f)
		}
	}
	return orPass(found, "no network of the host overlaps those of the node")
}

// freeRange is first, or a later range of its size within 10.0.0.0/8 that no route is in.
func freeRange(first string, routes []route) string {
	p := netip.MustParsePrefix(first)
	for p.Addr().As4()[0] == 10 {
		clash := false
		for _, r := range routes {
			clash = clash || r.prefix.Overlaps(p) && r.prefix.Bits() > 8
		}
		if !clash {
			break
		}
		ip := p.Addr().As4()
		next := binary.BigEndian.Uint32(ip[:]) + 1<<(32-p.Bits())
		binary.BigEndian.PutUint32(ip[:], next)
		p = netip.PrefixFrom(netip.AddrFrom4(ip), p.Bits())
	}
	return p.String()
}
