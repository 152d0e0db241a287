package portdriver

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
)

// SourceRange defines which clients may connect to one port of the host.
type SourceRange struct {
	// Proto is tcp or udp, optionally followed by 4 or 6; IP and Port are the address of the port.
	Proto string     `json:"proto"`
	IP    netip.Addr `json:"ip"`
	Port  int        `json:"port"`
	// Allowed are the allowed client addresses. If it is empty, no client is allowed.
	Allowed []netip.Prefix `json:"allowed"`
}

// place is the protocol and address of a port.
type place struct {
	udp  bool
	ip   netip.Addr
	port int
}

func placeOf(proto string, ip netip.Addr, p int) place {
	return place{strings.HasPrefix(proto, "udp"), ip.Unmap(), p}
}

// sourceTable contains the SourceRanges in force and a guard for each open port. Its zero value is ready to use.
type sourceTable struct {
	mu      sync.Mutex
	allowed map[place][]netip.Prefix
	guards  map[place]*guard
}

// set replaces the ranges. When it returns, connections of clients that are no longer allowed are closed.
func (t *sourceTable) set(list []SourceRange) error {
	allowed := make(map[place][]netip.Prefix, len(list))
	for _, r := range list {
		at := placeOf(r.Proto, r.IP, r.Port)
		if _, twice := allowed[at]; twice || !r.IP.IsValid() {
			return fmt.Errorf("source ranges of %s %s port %d: duplicate entry or missing address", r.Proto, r.IP, r.Port)
		}
		allowed[at] = append([]netip.Prefix{}, r.Allowed...)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.allowed = allowed
	for at, g := range t.guards {
		g.restrict(allowed[at])
	}
	return nil
}

// open returns the guard of a port that is about to open. The caller must call close when the port is closed.
func (t *sourceTable) open(spec port.Spec) (g *guard, close func()) {
	ip, _ := netip.ParseAddr(spec.ParentIP) // without an address, no ranges apply
	at := placeOf(spec.Proto, ip, spec.ParentPort)
	t.mu.Lock()
	defer t.mu.Unlock()
	g = &guard{allowed: t.allowed[at]}
	if t.guards == nil {
		t.guards = map[place]*guard{}
	}
	t.guards[at] = g
	return g, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.guards[at] == g {
			delete(t.guards, at)
		}
	}
}

// guard checks the clients of one open port. A nil guard admits all.
type guard struct {
	mu      sync.Mutex
	allowed []netip.Prefix // nil: all clients
	clients map[*client]struct{}
}

// client is an admitted client; drop ends its connection.
type client struct {
	address netip.Addr
	drop    func()
}

// enter admits a client if its address is allowed. The caller must call leave when the client has gone. If the ranges change
// and no longer contain the address, drop is called; this may happen before enter returns or after leave.
func (g *guard) enter(address netip.Addr, drop func()) (leave func(), admitted bool) {
	if g == nil {
		return func() {}, true
	}
	c := &client{address.Unmap().WithZone(""), drop}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.admits(c.address) {
		return nil, false
	}
	if g.clients == nil {
		g.clients = map[*client]struct{}{}
	}
	g.clients[c] = struct{}{}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.clients, c)
	}, true
}

// admits reports whether an address is allowed. g.mu must be held.
func (g *guard) admits(address netip.Addr) bool {
	if g.allowed == nil {
		return true
	}
	for _, p := range g.allowed {
		if p.Contains(address) {
			return true
		}
	}
	return false
}

func (g *guard) restrict(allowed []netip.Prefix) {
	g.mu.Lock()
	g.allowed = allowed
	var gone []*client
	for c := range g.clients {
		if !g.admits(c.address) {
			delete(g.clients, c)
			gone = append(gone, c)
		}
	}
	g.mu.Unlock()
	for _, c := range gone {
		c.drop()
	}
}
