package child

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

	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/component/pki"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
)

// errNotOurs is returned for a request that another approver, or an administrator, decides on.
var errNotOurs = errors.New("not for this approver to decide")

// kind is what a request asks for, and by which right.
type kind int

const (
	byToken kind = iota // the first certificate of a node, by a bootstrap token
	renewal             // a node's next client certificate
	toServe             // a kubelet's serving certificate
)

// petition is a certificate request that could be read.
type petition struct {
	csr     kubeapi.CSR
	kind    kind
	request *x509.CertificateRequest
	node    string // the name in the subject
	tokenID string
}

// facts is what the cluster knows, at the time of a decision.
type facts struct {
	now   time.Time
	nodes []corev1.Node
	// token is the bootstrap token of the request; nil if it was deleted.
	token *kubeapi.BootstrapToken
	// leaseRenewed is when the node renewed its Lease last; zero if it has none.
	leaseRenewed time.Time
	// claimed is set if the name is reserved for this very request, whose approval did not succeed before.
	claimed bool
}

// node returns the Node object of that name, or nil.
func (f *facts) node(name string) *corev1.Node {
	if i := slices.IndexFunc(f.nodes, func(n corev1.Node) bool { return n.Name == name }); i >= 0 {
		return &f.nodes[i]
	}
	return nil
}

// member reports whether the cluster has the node, and it is not being deleted.
func (f *facts) member(name string) bool {
	node := f.node(name)
	return node != nil && node.DeletionTimestamp == nil
}

// judge is what requests are compared with, in addition to the facts.
type judge struct {
	// controlPlane is the node that no other may become.
	controlPlane string
	// names and addresses are the API server's, and networks those of Services and pods. A certificate of the cluster's
	// authority for any of them would pass for the API server, or for what serves in the cluster.
	names     *reservedNames
	addresses []netip.Addr
	networks  []netip.Prefix
}

func newJudge(e component.Env) (*judge, error) {
	names, addresses, err := pki.APIServerNames(e)
	if err != nil {
		return nil, err
	}
	j := &judge{controlPlane: e.Config.NodeName, names: newReservedNames(names, e.Config.Cluster.Domain, e.HostName, e.Config.NodeName), addresses: addresses}
	for _, cidr := range append(e.Config.ServiceCIDRs(), e.Config.PodCIDRs()...) {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("networks that no node serves in: %w", err)
		}
		j.networks = append(j.networks, p)
	}
	return j, nil
}

// parsePetition reads a pending request. Its node is empty if the subject is not a node's.
func parsePetition(csr kubeapi.CSR) (petition, error) {
	p := petition{csr: csr}
	id, bootstrap := strings.CutPrefix(csr.Username, kubeapi.BootstrapUserPrefix)
	switch {
	case csr.Signer == kubeapi.SignerKubeletServing:
		p.kind = toServe
	case bootstrap && slices.Contains(csr.Groups, kubeapi.BootstrapGroup):
		p.kind, p.tokenID = byToken, id
	case slices.Contains(csr.Groups, pki.GroupNodes):
		p.kind = renewal
	default:
		return p, errNotOurs
	}
	var err error
	if p.request, err = parseRequest(csr.PEM); err != nil {
		return p, err
	}
	subject := p.request.Subject
	name, ok := strings.CutPrefix(subject.CommonName, pki.NodeUser(""))
	if !ok || !validNodeName(name) || !slices.Equal(subject.Organization, []string{pki.GroupNodes}) {
		return p, fmt.Errorf("the subject %s is not a node's", subject)
	}
	p.node = name
	return p, nil
}

func validNodeName(name string) bool { return len(validation.IsDNS1123Subdomain(name)) == 0 }

// parseRequest reads one CERTIFICATE REQUEST in PEM form.
func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(rest) > 0 {
		return nil, errors.New("the request is not one PEM block")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = req.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	return req, nil
}

// judge returns an error unless the request is to be approved.
func (j *judge) judge(p petition, f *facts) error {
	if p.node == j.controlPlane {
		return fmt.Errorf("%s is the node of the control plane: choose another name (--set nodeName=NAME)", p.node)
	}
	if len(p.request.EmailAddresses)+len(p.request.URIs) > 0 {
		return errors.New("it contains names other than DNS names and addresses")
	}
	purpose := "client auth"
	if p.kind == toServe {
		purpose = "server auth"
	} else if len(p.request.DNSNames)+len(p.request.IPAddresses) > 0 {
		return errors.New("a client certificate contains no names of servers")
	}
	if err := uses(p.csr, purpose); err != nil {
		return err
	}
	switch p.kind {
	case byToken:
		return j.judgeNew(p, f)
	case renewal:
		return judgeMember(p, f)
	}
	if err := judgeMember(p, f); err != nil {
		return err
	}
	return j.judgeServing(p, f)
}

// judgeMember checks that a node asks for itself, and that it was not removed. The certificate of a removed node cannot be
// revoked, so it must at least not be renewed.
func judgeMember(p petition, f *facts) error {
	if p.csr.Username != p.request.Subject.CommonName || !slices.Contains(p.csr.Groups, pki.GroupNodes) {
		return fmt.Errorf("%s asks for a certificate of node %s", p.csr.Username, p.node)
	}
	if !f.member(p.node) {
		return fmt.Errorf("there is no Node object %s: the node joins again with a token (rootlessnode token create, on the first node)", p.node)
	}
	return nil
}

// silence is how long a node must not have renewed its Lease before its name can be taken. It is above the controller
// manager's --node-monitor-grace-period, and a kubelet renews every ten seconds.
const silence = time.Minute

// judgeNew decides whether the holder of a bootstrap token may become the node. The name of a Node object that exists is only
// for a token that is bound to it, because with the name come the Secrets of the node's pods.
func (j *judge) judgeNew(p petition, f *facts) error {
	if why := j.names.reserved(p.node); why != "" {
		return fmt.Errorf("%s is %s: choose another name (--set nodeName=NAME)", p.node, why)
	}
	t := f.token
	switch {
	case t == nil:
		return fmt.Errorf("the bootstrap token %s has expired or was deleted", p.tokenID)
	case t.NodeName != "" && t.NodeName != p.node:
		return fmt.Errorf("the bootstrap token %s is for node %s only (token create --node %s)", t.ID, t.NodeName, p.node)
	case t.SingleUse && t.UsedBy != "" && t.UsedBy != p.node:
		return fmt.Errorf("the bootstrap token %s was used by node %s: each node needs its own (rootlessnode token create, on the first node), "+
			"unless it was created with --reusable", t.ID, t.UsedBy)
	case t.NodeName == "" && j.names.elsewhere(p.node):
		return fmt.Errorf("%[1]s is in a domain in which the control plane's host is not: on the first node create a token for it "+
			"(rootlessnode token create --node %[1]s), or choose another name (--set nodeName=NAME)", p.node)
	}
	node := f.node(p.node)
	if node == nil || f.claimed {
		return nil
	}
	if t.NodeName != p.node && t.UsedBy != p.node {
		return fmt.Errorf("there is a node %[1]s already: choose another name (--set nodeName=NAME), or on the first node "+
			"create a token for this one (rootlessnode token create --node %[1]s) or delete that Node object", p.node)
	}
	// A claim renews the Lease too, so of two requests at the same time only one is approved.
	last := node.CreationTimestamp.Time
	if f.leaseRenewed.After(last) {
		last = f.leaseRenewed
	}
	if f.now.Sub(last) <= silence {
		return fmt.Errorf("node %s was alive within the last minute: stop it, or wait a minute and try again", p.node)
	}
	return nil
}

// judgeServing checks that a node serves under its own name and the addresses that no other node has. A node writes its own
// addresses, so those of the API server and of the cluster's networks are refused whatever a Node object says.
func (j *judge) judgeServing(p petition, f *facts) error {
	if why := j.names.reserved(p.node); why != "" {
		return fmt.Errorf("%s is %s", p.node, why)
	}
	if len(p.request.DNSNames)+len(p.request.IPAddresses) == 0 {
		return errors.New("it names no server")
	}
	for _, dns := range p.request.DNSNames {
		if dns != p.node {
			return fmt.Errorf("DNS name %s is not the node's", dns)
		}
	}
	owners := addressOwners(f.nodes)
	for _, ip := range p.request.IPAddresses {
		a, _ := netip.AddrFromSlice(ip) // 4 or 16 bytes, or it would not have been read
		a = a.Unmap()
		switch has := owners[a]; {
		case slices.Contains(j.addresses, a):
			return fmt.Errorf("address %s is the API server's", a)
		case slices.ContainsFunc(j.networks, func(p netip.Prefix) bool { return p.Contains(a) }):
			return fmt.Errorf("address %s is in the network of Services or pods", a)
		case a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || len(has) == 0:
			return fmt.Errorf("address %s is not the node's", a)
		case len(has) > 1:
			return fmt.Errorf("address %s belongs to more than one node: %s", a, strings.Join(has, ", "))
		case has[0] != p.node:
			return fmt.Errorf("address %s belongs to %s", a, has[0])
		}
	}
	return nil
}

// addressOwners returns the nodes that have an address, by what their Node objects say. An address of type Hostname is a name,
// and the node's name is compared instead.
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

// uses checks the requested usages: the purpose, and otherwise at most those of every TLS key.
func uses(csr kubeapi.CSR, purpose string) error {
	for _, u := range csr.Usages {
		if u != purpose && u != "digital signature" && u != "key encipherment" {
			return fmt.Errorf("use %q is not allowed for a node", u)
		}
	}
	if !slices.Contains(csr.Usages, purpose) {
		return fmt.Errorf("it is not for %q", purpose)
	}
	return nil
}
