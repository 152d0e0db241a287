package pki

import (
	"errors"
	"fmt"
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
	Certificates         []Certificate
}

// Authority signs certificates. Its own certificate is self-signed.
type Authority struct {
	// Name is the file name below the PKI directory, without .crt and .key.
	Name       string
	CommonName string
}

// Certificate is signed by an authority, for a server, a client or both.
type Certificate struct {
	// Name is the file name below the PKI directory, without .crt and .key.
	Name string
	// Authority is the Name of the authority that signs it.
	Authority string
	// CommonName and Organizations are the user and groups in Kubernetes.
	CommonName    string
	Organizations []string
	// Server and Client are the allowed usages.
	Server, Client bool
	// DNSNames and Addresses are those of the server. Order and duplicates do not matter.
	DNSNames  []string
	Addresses []netip.Addr
}

// NodeSpec returns the certificates of a node with the embedded control plane.
func NodeSpec(e component.Env) (Spec, error) {
	api, err := apiServer(e)
	if err != nil {
		return Spec{}, fmt.Errorf("certificate of the API server: %w", err)
	}
	nodeIPs, err := nodeAddresses(e)
	if err != nil {
		return Spec{}, fmt.Errorf("certificate of the kubelet: %w", err)
	}
	nodeName := e.Config.NodeName
	loop := loopbackAddresses()
	client := func(name, ca, user string, groups ...string) Certificate {
		return Certificate{Name: name, Authority: ca, CommonName: user, Organizations: groups, Client: true}
	}
	// Both usages, because these programs also serve their health endpoint with the client certificate.
	local := func(name, ca, user string) Certificate {
		c := client(name, ca, user)
		c.Server, c.DNSNames, c.Addresses = true, []string{localhost}, loop
		return c
	}
	spec := Spec{
		CALifetime: e.Config.Certificates.CALifetime.D(),
		Lifetime:   e.Config.Certificates.Lifetime.D(),
		Authorities: []Authority{
			{ClusterCA, "rootlessnode-ca"}, {EtcdCA, "rootlessnode-etcd-ca"}, {FrontProxyCA, "rootlessnode-front-proxy-ca"},
		},
		Certificates: []Certificate{
			api,
			client(APIServerKubeletClient, ClusterCA, UserKubeletClient),
			client(APIServerEtcdClient, EtcdCA, "kube-apiserver"),
			client(FrontProxyClient, FrontProxyCA, FrontProxyClient),
			local(EtcdServer, EtcdCA, "etcd-server"),
			local(EtcdPeer, EtcdCA, "etcd-peer"),
			{
				Name: KubeletServer, Authority: ClusterCA, CommonName: NodeUser(nodeName), Organizations: []string{GroupNodes},
				Server: true, DNSNames: []string{nodeName, localhost}, Addresses: append(nodeIPs, loop...),
			},
			client(KubeletClient, ClusterCA, NodeUser(nodeName), GroupNodes),
			client(Admin, ClusterCA, UserAdmin, GroupMasters),
			local(ControllerManager, ClusterCA, UserControllerManager),
			local(Scheduler, ClusterCA, UserScheduler),
			client(KubeProxy, ClusterCA, UserKubeProxy),
			client(Flannel, ClusterCA, UserFlannel),
		},
	}
	if e.Config.EnforcesPolicies() {
		spec.Certificates = append(spec.Certificates, client(NetworkPolicy, ClusterCA, UserNetworkPolicy))
	}
	return spec, nil
}

const localhost = "localhost"

func loopbackAddresses() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
}

// nodeAddresses returns the addresses of the Node.
func nodeAddresses(e component.Env) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, s := range []string{e.NodeIP, e.NodeIPv6, e.PublicIP} {
		if s == "" && len(out) > 0 {
			continue
		}
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("node address: %w", err)
		}
		out = append(out, a.Unmap())
	}
	return out, nil
}

// apiServer returns the API server's certificate with all names by which it is reached from the host, from pods and
// inside.
func apiServer(e component.Env) (Certificate, error) {
	cfg := e.Config
	c := Certificate{
		Name: APIServer, Authority: ClusterCA, CommonName: "kube-apiserver", Server: true,
		DNSNames: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + cfg.Cluster.Domain,
			localhost, cfg.NodeName,
		},
		Addresses: loopbackAddresses(),
	}
	if e.HostName != "" {
		c.DNSNames = append(c.DNSNames, strings.ToLower(e.HostName))
	}
	var errs []error
	address := func(what, s string) netip.Addr {
		a, err := netip.ParseAddr(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
		return a.Unmap()
	}
	node, err := nodeAddresses(e)
	c.Addresses, errs = append(c.Addresses, node...), append(errs, err)
	if bind := address("api.bindAddress", cfg.API.BindAddress); !bind.IsUnspecified() {
		c.Addresses = append(c.Addresses, bind)
	}
	for _, cidr := range cfg.ServiceCIDRs() {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			errs = append(errs, fmt.Errorf("cluster.serviceCIDR: %w", err))
			continue
		}
		c.Addresses = append(c.Addresses, p.Masked().Addr().Next())
	}
	for _, san := range cfg.API.ExtraSANs {
		if a, err := netip.ParseAddr(san); err == nil {
			c.Addresses = append(c.Addresses, a.Unmap())
		} else {
			c.DNSNames = append(c.DNSNames, san)
		}
	}
	return c, errors.Join(errs...)
}

// APIServerNames returns the DNS names, in lower case, and the addresses in the API server's certificate. No other
// certificate may have them.
func APIServerNames(e component.Env) (names []string, addresses []netip.Addr, err error) {
	c, err := apiServer(e)
	if err != nil {
		return nil, nil, fmt.Errorf("names of the API server: %w", err)
	}
	for _, n := range c.DNSNames {
		names = append(names, strings.ToLower(n))
	}
	return names, c.Addresses, nil
}

// normal sorts names and addresses and removes duplicates, so that only real differences count as changes.
func (c Certificate) normal() Certificate {
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
