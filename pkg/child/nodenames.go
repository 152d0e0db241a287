package child

import (
	"crypto/x509"
	"net/netip"
	"slices"
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
	// siblings are the domains of the control plane's host, directly below which other hosts have their names.
	siblings []string
}

// newReservedNames takes the DNS names of the API server's certificate, which may contain wildcards, the cluster's domain, and
// the names of the control plane's host.
func newReservedNames(api []string, clusterDomain string, hosts ...string) *reservedNames {
	r := &reservedNames{domains: []string{
		"svc", plainName(clusterDomain), "localhost", "localhost.localdomain",
		// What pods reach as NAME.NAMESPACE is a Service.
		"default", "kube-system", "kube-public", "kube-node-lease",
		// What pods reach as NAME.rootlessnode.internal is the host.
		"rootlessnode.internal",
	}}
	for _, host := range hosts {
		_, domain, _ := strings.Cut(plainName(host), ".")
		if strings.Contains(domain, ".") || slices.Contains(privateDomains, domain) {
			r.siblings = append(r.siblings, domain)
		}
	}
	for _, name := range api {
		r.api.DNSNames = append(r.api.DNSNames, plainName(name))
	}
	return r
}

// privateDomains are top-level domains in which no name is a public one.
var privateDomains = []string{"internal", "lan", "local", "localdomain", "test"}

// elsewhere reports whether a name is in a domain in which the control plane's host is not, such as github.com. A name without
// a dot is in none.
func (r *reservedNames) elsewhere(name string) bool {
	_, domain, _ := strings.Cut(plainName(name), ".")
	return domain != "" && !slices.Contains(r.siblings, domain)
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
