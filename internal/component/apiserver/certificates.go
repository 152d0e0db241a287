package apiserver

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/etcd"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
)

// ServiceName is the DNS name of the API server's Service, without the domain of the cluster.
const ServiceName = "kubernetes.default.svc"

// certificates returns the certificates of the API server, of its clients at other servers, and of the administrator.
func certificates(e component.Env) ([]component.Certificate, error) {
	server, err := serverCertificate(e)
	if err != nil {
		return nil, fmt.Errorf("certificate of the API server: %w", err)
	}
	return []component.Certificate{
		server,
		pki.Client(etcd.ClientCert, pki.EtcdCA, Name),
		pki.Client(kubeletClient, pki.ClusterCA, userKubeletClient),
		pki.Client(frontProxyClient, pki.FrontProxyCA, frontProxyClient),
		// The group passes every authorization check.
		pki.Client(Admin, pki.ClusterCA, "rootlessnode:admin", "system:masters"),
	}, nil
}

// serverCertificate has all names by which the API server is reached from the host, from pods and inside.
func serverCertificate(e component.Env) (component.Certificate, error) {
	cfg := e.Config
	c := component.Certificate{
		Name: Certificate, Authority: pki.ClusterCA, CommonName: Name, Server: true,
		DNSNames: []string{
			"kubernetes", "kubernetes.default", ServiceName, ServiceName + "." + cfg.Cluster.Domain,
			pki.Localhost, cfg.NodeName,
		},
		Addresses: pki.LoopbackAddresses(),
	}
	if e.HostName != "" {
		c.DNSNames = append(c.DNSNames, strings.ToLower(e.HostName))
	}
	node, err := e.Addresses()
	c.Addresses = append(c.Addresses, node...)
	errs := []error{err}
	switch bind, err := netip.ParseAddr(cfg.API.BindAddress); {
	case err != nil:
		errs = append(errs, fmt.Errorf("api.bindAddress: %w", err))
	case !bind.Unmap().IsUnspecified():
		c.Addresses = append(c.Addresses, bind.Unmap())
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

// CertificateNames returns the DNS names, in lower case, and the addresses in the API server's certificate. No other
// certificate may have them.
func CertificateNames(e component.Env) (names []string, addresses []netip.Addr, err error) {
	c, err := serverCertificate(e)
	if err != nil {
		return nil, nil, fmt.Errorf("names of the API server: %w", err)
	}
	for _, n := range c.DNSNames {
		names = append(names, strings.ToLower(n))
	}
	return names, c.Addresses, nil
}
