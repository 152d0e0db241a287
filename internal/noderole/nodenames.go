package noderole

import (
	"crypto/x509"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// reservedNames are names that a worker must not have, because a certificate of the cluster CA for such a name could
// impersonate another server.
type reservedNames struct {
	// api is a certificate with the API server's names.
	api x509.Certificate
	// domains belong to the cluster, with all names below them.
	domains []string
	// siblings are the domains of the control plane's host. Other hosts may have names directly below them.
	siblings []string
}

// newReservedNames returns the reserved names for the DNS names of the API server's certificate, which may contain
// wildcards, the cluster domain, and the names of the control plane's host.
func newReservedNames(api []string, clusterDomain string, hosts ...string) *reservedNames {
	r := &reservedNames{domains: []string{
		"svc", plainName(clusterDomain), "localhost", "localhost.localdomain",
		// Pods resolve NAME.NAMESPACE to a Service.
		"default", "kube-system", "kube-public", "kube-node-lease",
		// Pods resolve NAME.rootlessnode.internal to the host.
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

// privateDomains are top-level domains that have no public names.
var privateDomains = []string{"internal", "lan", "local", "localdomain", "test"}

// foreignDomain reports whether the name has a domain that is not the domain of the control plane's host, such as
// github.com. It returns false for a name without a dot.
func (r *reservedNames) foreignDomain(name string) bool {
	_, domain, _ := strings.Cut(plainName(name), ".")
	return domain != "" && !slices.Contains(r.siblings, domain)
}

// plainName returns the name in lower case and without a trailing dot, for comparisons.
func plainName(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

// reserved returns the reason why a worker must not have the name, or "" if it may.
func (r *reservedNames) reserved(name string) string {
	name = plainName(name)
	// Some programs parse a name whose last label is a number as an address.
	last := name[strings.LastIndexByte(name, '.')+1:]
	if _, err := netip.ParseAddr(name); err == nil || isNumber(last) {
		return "an address, not a name"
	}
	for _, domain := range r.domains {
		if domain != "" && (name == domain || strings.HasSuffix(name, "."+domain)) {
			return "a name of the cluster (" + domain + ")"
		}
	}
	// crypto/x509 compares names as TLS clients do, wildcards included.
	if r.api.VerifyHostname(name) == nil {
		return "a name of the API server"
	}
	return ""
}

func isNumber(label string) bool {
	_, err := strconv.ParseUint(label, 0, 64)
	return err == nil
}
