package portfwd

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
)

// managerState is the last report of the port manager.
type managerState struct {
	listed  bool
	info    *api.Info
	foreign []port.Status // forwards that are not in the ledger
}

// resolve returns the spec of w, with the node's address if w has none.
func (m *managerState) resolve(w Forward, cfg Config) (port.Spec, error) {
	if !m.listed {
		return port.Spec{}, nil
	}
	if m.info.PortDriver == nil {
		return port.Spec{}, &fault{ReasonNoDriver, fmt.Errorf("RootlessKit has no port driver")}
	}
	if p := m.info.PortDriver.Protos; len(p) > 0 && !slices.Contains(p, w.Proto) {
		return port.Spec{}, &fault{ReasonProtocol,
			fmt.Errorf("port driver %s cannot forward %s, only %s", m.info.PortDriver.Driver, w.Proto, strings.Join(p, ", "))}
	}
	child := w.ChildIP
	if child.IsLoopback() && m.info.PortDriver.DisallowLoopbackChildIP {
		child = netip.Addr{}
	}
	if !child.IsValid() {
		if child = m.nodeAddress(w.IP, cfg); !child.IsValid() && !w.IP.Is4() {
			return port.Spec{}, &fault{ReasonFamily, fmt.Errorf("the node has no IPv6 address")}
		}
	}
	s := port.Spec{Proto: w.Proto, ParentIP: w.IP.String(), ParentPort: w.Port, ChildPort: w.ChildPort}
	if child.IsValid() {
		s.ChildIP = child.String()
	}
	return s, nil
}

// nodeAddress returns the node's address of the family of host, or the zero Addr. Without it, RootlessKit's driver chooses.
func (m *managerState) nodeAddress(host netip.Addr, cfg Config) netip.Addr {
	if !host.Is4() {
		return cfg.ChildIPv6
	}
	if cfg.ChildIPv4.IsValid() || m.info.NetworkDriver == nil {
		return cfg.ChildIPv4
	}
	a, _ := netip.AddrFromSlice(m.info.NetworkDriver.ChildIP)
	return a.Unmap()
}

// bindOf returns the Bind of a spec; ok is false if a Forwarder could not have made it.
func bindOf(s port.Spec) (Bind, bool) {
	ip, err := netip.ParseAddr(s.ParentIP)
	b := Bind{Proto: s.Proto, IP: ip, Port: s.ParentPort}
	ours := err == nil && ip.String() == s.ParentIP && len(s.Proto) == 4 && s.Proto == family(s.Proto[:3], ip)
	return b, ours
}

// holder describes a forward of RootlessKit that covers b, or returns an empty string.
func holder(f *Forwarder, b Bind) string {
	covers := func(proto, ip string, p int) bool {
		a, _ := netip.ParseAddr(ip)
		return p == b.Port && strings.HasPrefix(proto, b.Proto[:3]) && (!a.IsValid() || a.IsUnspecified() || b.IP.IsUnspecified() || a == b.IP)
	}
	for _, e := range f.entries {
		if e.bind != b && e.have != nil && e.have.owned && covers(e.bind.Proto, e.have.spec.ParentIP, e.bind.Port) {
			return fmt.Sprintf("the forward %s for %s", e.bind, e.owner)
		}
	}
	for _, st := range f.manager.foreign {
		if covers(st.Spec.Proto, st.Spec.ParentIP, st.Spec.ParentPort) {
			return describe(st.ID, st.Spec)
		}
	}
	return ""
}

func describe(id int, s port.Spec) string {
	return fmt.Sprintf("RootlessKit forward %d (%s %s:%d to %s:%d)", id, s.Proto, s.ParentIP, s.ParentPort, s.ChildIP, s.ChildPort)
}
