package pki

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/component"
)

// Spec is the set of keys and certificates that must exist.
type Spec struct {
	// CALifetime and Lifetime are the lifetimes of new authorities and certificates.
	CALifetime, Lifetime time.Duration
	Authorities          []Authority
	Certificates         []component.Certificate
}

// Authority signs certificates. Its own certificate is self-signed.
type Authority struct {
	// Name is the file name below the PKI directory, without .crt and .key.
	Name       string
	CommonName string
}

// NodeSpec returns the Spec of a node with the embedded control plane.
func NodeSpec(e component.Env, certificates []component.Certificate) Spec {
	return Spec{
		CALifetime: e.Config.Certificates.CALifetime.D(),
		Lifetime:   e.Config.Certificates.Lifetime.D(),
		Authorities: []Authority{
			{ClusterCA, "rootlessnode-ca"}, {EtcdCA, "rootlessnode-etcd-ca"}, {FrontProxyCA, "rootlessnode-front-proxy-ca"},
		},
		Certificates: certificates,
	}
}

// Client returns a client's certificate.
func Client(name, authority, user string, groups ...string) component.Certificate {
	return component.Certificate{Name: name, Authority: authority, CommonName: user, Organizations: groups, Client: true}
}

// Local returns the certificate of a program that is a client and serves on loopback.
func Local(name, authority, user string) component.Certificate {
	c := Client(name, authority, user)
	c.Server, c.DNSNames, c.Addresses = true, []string{Localhost}, LoopbackAddresses()
	return c
}

// Localhost is the DNS name of LoopbackAddresses.
const Localhost = "localhost"

// LoopbackAddresses returns the loopback address of each family.
func LoopbackAddresses() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
}

// normal sorts names and addresses and removes duplicates, so that only real differences count as changes.
func normal(c component.Certificate) component.Certificate {
	c.Organizations = uniq(c.Organizations, strings.Compare)
	c.DNSNames = uniq(c.DNSNames, strings.Compare)
	c.Addresses = uniq(c.Addresses, netip.Addr.Compare)
	return c
}

func uniq[T comparable](in []T, cmp func(a, b T) int) []T {
	out := slices.Clone(in)
	slices.SortFunc(out, cmp)
	return slices.Compact(out)
}
