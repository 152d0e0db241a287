package child

import (
	"crypto/x509"
	"net/netip"
	"strconv"
	"strings"
)

// reservedNames are the names that no worker may have, because a certificate of the cluster's authority for one of them would
// pass for another server.
type reservedNames struct {
	// api is a certificate with the API server's names.
	api x509.Certificate
	// domains are those whose names, and the names below, belong to the cluster.
	domains []string
}

// newReservedNames takes the DNS names of the API server's certificate, which may contain wildcards, and the cluster's domain.
func newReservedNames(api []string, clusterDomain string) *reservedNames {
	r := &reservedNames{domains: []string{
		"svc", plainName(clusterDomain), "localhost", "localhost.localdomain",
		// What pods reach as NAME.NAMESPACE is a Service.
		"default", "kube-system", "kube-public", "kube-node-lease",
		// What pods reach as NAME.rootlessnode.internal is the host.
		"rootlessnode.internal",
	}}
	for _, name := range api {
		r.api.DNSNames = append(r.api.DNSNames, plainName(name))
	}
	return r
}

// plainName returns a name in the form in which names are compared.
func plainName(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

// reserved says why a worker may not have the name; empty if it may.
func (r *reservedNames) reserved(name string) string {
	name = plainName(name)
	// Some programs take a name whose last label is a number for an address.
	last := name[strings.LastIndexByte(name, '.')+1:]
	if _, err := netip.ParseAddr(name); err == nil || isNumber(last) {
		return "an address and not a name"
	}
	for _, domain := range r.domains {
		if domain != "" && (name == domain || strings.HasSuffix(name, "."+domain)) {
			return "a name of the cluster (" + domain + ")"
		}
	}
	// The comparison of crypto/x509, wildcards included.
	if r.api.VerifyHostname(name) == nil {
		return "a name of the API server"
	}
	return ""
}

func isNumber(label string) bool {
	_, err := strconv.ParseUint(label, 0, 64)
	return err == nil
}
