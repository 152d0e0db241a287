package noderole

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
)

// errOtherApprover is returned for a request that another approver or an administrator decides.
var errOtherApprover = errors.New("not for this approver to decide")

// kind is the purpose of a request and the credential that authorizes it.
type kind int

const (
	byToken kind = iota // the first certificate of a node, by a bootstrap token
	renewal             // a node's next client certificate
	toServe             // a kubelet's serving certificate
)

// nodeRequest is a parsed certificate request of a node.
type nodeRequest struct {
	csr     kubeapi.CSR
	kind    kind
	request *x509.CertificateRequest
	node    string // the name in the subject
	tokenID string
}

// facts is the state of the cluster at the time of a decision.
type facts struct {
	now   time.Time
	nodes []corev1.Node
	// token is the bootstrap token of the request, or nil if it was deleted.
	token *kubeapi.BootstrapToken
	// leaseRenewed is when the node last renewed its Lease, or zero if it has none.
	leaseRenewed time.Time
	// claimed is set if the name is reserved for this request, because an earlier approval of it failed.
	claimed bool
}

// node returns the Node object with that name, or nil.
func (f *facts) node(name string) *corev1.Node {
	if i := slices.IndexFunc(f.nodes, func(n corev1.Node) bool { return n.Name == name }); i >= 0 {
		return &f.nodes[i]
	}
	return nil
}

// member reports whether the cluster has the node and is not deleting it.
func (f *facts) member(name string) bool {
	node := f.node(name)
	return node != nil && node.DeletionTimestamp == nil
}

// csrPolicy holds the names and addresses of the cluster that requests are checked against, in addition to the facts.
type csrPolicy struct {
	// controlPlane is the name of the control plane's node. No other node may have it.
	controlPlane string
	// names and addresses belong to the API server; networks are those of Services and pods. A certificate of the
	// cluster CA for one of them could impersonate the API server or a service of the cluster.
	names     *reservedNames
	addresses []netip.Addr
	networks  []netip.Prefix
}

func newCSRPolicy(e component.Env) (*csrPolicy, error) {
	names, addresses, err := apiserver.CertificateNames(e)
	if err != nil {
		return nil, err
	}
	c := &csrPolicy{controlPlane: e.Config.NodeName, names: newReservedNames(names, e.Config.Cluster.Domain, e.HostName, e.Config.NodeName), addresses: addresses}
	for _, cidr := range append(e.Config.ServiceCIDRs(), e.Config.PodCIDRs()...) {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("parse Service and pod networks: %w", err)
		}
		c.networks = append(c.networks, p)
	}
	return c, nil
}

// parseNodeRequest parses a pending request. The node name is empty if the subject is not a node.
func parseNodeRequest(csr kubeapi.CSR) (nodeRequest, error) {
	p := nodeRequest{csr: csr}
	id, bootstrap := strings.CutPrefix(csr.Username, kubeapi.BootstrapUserPrefix)
	switch {
	case csr.Signer == kubeapi.SignerKubeletServing:
		p.kind = toServe
	case bootstrap && slices.Contains(csr.Groups, kubeapi.BootstrapGroup):
		p.kind, p.tokenID = byToken, id
	case slices.Contains(csr.Groups, pki.GroupNodes):
		p.kind = renewal
	default:
		return p, errOtherApprover
	}
	var err error
	if p.request, err = parseRequest(csr.PEM); err != nil {
		return p, err
	}
	subject := p.request.Subject
	name, ok := strings.CutPrefix(subject.CommonName, pki.NodeUser(""))
	if !ok || !validNodeName(name) || !slices.Equal(subject.Organization, []string{pki.GroupNodes}) {
		return p, fmt.Errorf("subject %s is not a node", subject)
	}
	p.node = name
	return p, nil
}

func validNodeName(name string) bool { return len(validation.IsDNS1123Subdomain(name)) == 0 }

// parseRequest parses one CERTIFICATE REQUEST in PEM format.
func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(rest) > 0 {
		return nil, errors.New("the request is not a single PEM block")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = req.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("parse the request: %w", err)
	}
	return req, nil
}

// check returns an error unless the request may be approved.
func (c *csrPolicy) check(p nodeRequest, f *facts) error {
	if p.node == c.controlPlane {
		return fmt.Errorf("%s is the node of the control plane: choose another name (--set nodeName=NAME)", p.node)
	}
	if len(p.request.EmailAddresses)+len(p.request.URIs) > 0 {
		return errors.New("the request contains names other than DNS names and IP addresses")
	}
	purpose := "client auth"
	if p.kind == toServe {
		purpose = "server auth"
	} else if len(p.request.DNSNames)+len(p.request.IPAddresses) > 0 {
		return errors.New("a client certificate must not contain server names")
	}
	if err := uses(p.csr, purpose); err != nil {
		return err
	}
	switch p.kind {
	case byToken:
		return c.checkNew(p, f)
	case renewal:
		return checkMember(p, f)
	}
	if err := checkMember(p, f); err != nil {
		return err
	}
	return c.checkServing(p, f)
}

// checkMember checks that a node requests a certificate for itself and that it was not removed. The certificate of a
// removed node cannot be revoked, but it must not be renewed.
func checkMember(p nodeRequest, f *facts) error {
	if p.csr.Username != p.request.Subject.CommonName || !slices.Contains(p.csr.Groups, pki.GroupNodes) {
		return fmt.Errorf("%s requests a certificate of node %s", p.csr.Username, p.node)
	}
	if !f.member(p.node) {
		return fmt.Errorf("there is no Node object %s: join the node again with a token from the first node", p.node)
	}
	return nil
}

// leaseTimeout is how long a node must not have renewed its Lease before another machine can take its name. It is
// longer than the controller manager's --node-monitor-grace-period; a kubelet renews its Lease every ten seconds.
const leaseTimeout = time.Minute

// checkNew decides whether a bootstrap token authorizes a new node. The name of an existing Node object requires a
// token that is bound to the name, because a node with that name can read the Secrets of the node's pods.
func (c *csrPolicy) checkNew(p nodeRequest, f *facts) error {
	if why := c.names.reserved(p.node); why != "" {
		return fmt.Errorf("%s is %s: choose another name (--set nodeName=NAME)", p.node, why)
	}
	t := f.token
	switch {
	case t == nil:
		return fmt.Errorf("bootstrap token %s has expired or was deleted", p.tokenID)
	case t.NodeName != "" && t.NodeName != p.node:
		return fmt.Errorf("bootstrap token %s is valid for node %s only", t.ID, t.NodeName)
	case t.SingleUse && t.UsedBy != "" && t.UsedBy != p.node:
		return fmt.Errorf("bootstrap token %s was used by node %s: each node needs its own token from the first node, "+
			"unless it was created with --reusable", t.ID, t.UsedBy)
	case t.NodeName == "" && c.names.foreignDomain(p.node):
		return fmt.Errorf("%[1]s is not in the domain of the control plane's host: create a token for this name on the first node, "+
			"or choose another nodeName", p.node)
	}
	node := f.node(p.node)
	if node == nil || f.claimed {
		return nil
	}
	if t.NodeName != p.node && t.UsedBy != p.node {
		return fmt.Errorf("node %[1]s already exists: choose another nodeName, or on the first node "+
			"create a token for this name or delete the Node object", p.node)
	}
	// An approval renews the Lease too, so only one of two concurrent requests is approved.
	last := node.CreationTimestamp.Time
	if f.leaseRenewed.After(last) {
		last = f.leaseRenewed
	}
	if f.now.Sub(last) <= leaseTimeout {
		return fmt.Errorf("node %s was active within the last minute: stop it, or wait a minute and retry", p.node)
	}
	return nil
}

// checkServing checks that a serving certificate contains only the node's name and addresses that no other node has. A
// node writes its own addresses, so those of the API server and of the cluster's networks are refused regardless of the
// Node objects.
func (c *csrPolicy) checkServing(p nodeRequest, f *facts) error {
	if why := c.names.reserved(p.node); why != "" {
		return fmt.Errorf("%s is %s", p.node, why)
	}
	if len(p.request.DNSNames)+len(p.request.IPAddresses) == 0 {
		return errors.New("the request contains no server names")
	}
	for _, dns := range p.request.DNSNames {
		if dns != p.node {
			return fmt.Errorf("DNS name %s does not belong to the node", dns)
		}
	}
	owners := addressOwners(f.nodes)
	for _, ip := range p.request.IPAddresses {
		a, _ := netip.AddrFromSlice(ip) // always 4 or 16 bytes after parsing
		a = a.Unmap()
		switch has := owners[a]; {
		case slices.Contains(c.addresses, a):
			return fmt.Errorf("address %s belongs to the API server", a)
		case slices.ContainsFunc(c.networks, func(p netip.Prefix) bool { return p.Contains(a) }):
			return fmt.Errorf("address %s is in the Service or pod network", a)
		case a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || len(has) == 0:
			return fmt.Errorf("address %s does not belong to the node", a)
		case len(has) > 1:
			return fmt.Errorf("address %s belongs to more than one node: %s", a, strings.Join(has, ", "))
		case has[0] != p.node:
			return fmt.Errorf("address %s belongs to node %s", a, has[0])
		}
	}
	return nil
}

// addressOwners returns the names of the nodes that have each address, according to the Node objects. Addresses of type
// Hostname are names, for which the node name is checked instead.
func addressOwners(nodes []corev1.Node) map[netip.Addr][]string {
	owners := map[netip.Addr][]string{}
	for i := range nodes {
		for _, a := range nodes[i].Status.Addresses {
			ip, err := netip.ParseAddr(a.Address)
			if err != nil || a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
				continue
			}
			if ip = ip.Unmap(); !slices.Contains(owners[ip], nodes[i].Name) {
				owners[ip] = append(owners[ip], nodes[i].Name)
			}
		}
	}
	return owners
}

// uses checks the requested key usages: purpose is required, and only the usages of TLS keys are allowed in addition.
func uses(csr kubeapi.CSR, purpose string) error {
	for _, u := range csr.Usages {
		if u != purpose && u != "digital signature" && u != "key encipherment" {
			return fmt.Errorf("usage %q is not allowed for a node", u)
		}
	}
	if !slices.Contains(csr.Usages, purpose) {
		return fmt.Errorf("usage %q is missing", purpose)
	}
	return nil
}
