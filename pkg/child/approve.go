package child

import (
	"context"
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

// approveNodes decides who becomes a node of the cluster, and what kubelets may call themselves. The controller manager's own
// approver knows neither which names are taken nor the addresses of a serving certificate; only the renewal of a node's
// client certificate is left to it.
func (n *nodeRole) approveNodes(ctx context.Context, ready func()) error {
	c, err := n.client()
	if err != nil {
		return err
	}
	j, err := newJudge(n.env)
	if err != nil {
		return err
	}
	ready()
	// One that could not be decided is looked at again by the unit's next start. Meanwhile the others have their turn.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var again *time.Timer
	defer func() {
		if again != nil {
			again.Stop()
		}
	}()
	return c.WatchCertificateRequests(ctx, func(csr kubeapi.CSR) {
		err := n.decide(ctx, c, j, csr)
		if err == nil || ctx.Err() != nil {
			return
		}
		err = fmt.Errorf("decide on certificate request %s: %w", csr.Name, err)
		n.log.WithError(err).Warn("a node's certificate request waits")
		if again == nil {
			again = time.AfterFunc(undecidedPause, func() { cancel(err) })
		}
	})
}

// undecidedPause is how long a request waits that could not be decided.
const undecidedPause = 2 * time.Second

func (n *nodeRole) decide(ctx context.Context, c *kubeapi.Client, j *judge, csr kubeapi.CSR) error {
	if !csr.Pending() || csr.Signer != kubeapi.SignerKubeletClient && csr.Signer != kubeapi.SignerKubeletServing {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.Health.D())
	defer cancel()
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return err
	}
	who, err := j.judge(csr, nodes)
	if errors.Is(err, errNotOurs) {
		return nil
	}
	log := n.log.WithField("node", who).WithField("request", csr.Name).WithField("signer", csr.Signer)
	if err != nil {
		log.WithError(err).Warn("certificate refused")
		return c.DecideCSR(ctx, csr, false, "RootlessNodeRefused", err.Error())
	}
	log.Info("certificate approved")
	return c.DecideCSR(ctx, csr, true, "RootlessNodeApproved", "name, addresses and uses are as they should be")
}

// errNotOurs: somebody else's to decide.
var errNotOurs = errors.New("not ours to decide")

// judge is what requests are held against, beside the nodes that there are.
type judge struct {
	// controlPlane is the node that nobody may become.
	controlPlane string
	// names and addresses are the API server's, and networks those of Services and pods. A certificate of the cluster's
	// authority for any of them would pass for the API server, or for what serves in the cluster.
	names     []string
	addresses []netip.Addr
	networks  []netip.Prefix
}

func newJudge(e component.Env) (*judge, error) {
	j := &judge{controlPlane: e.Config.NodeName}
	var err error
	if j.names, j.addresses, err = pki.APIServerNames(e); err != nil {
		return nil, err
	}
	for _, cidr := range append(e.Config.ServiceCIDRs(), e.Config.PodCIDRs()...) {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("networks that no node serves in: %w", err)
		}
		j.networks = append(j.networks, p)
	}
	return j, nil
}

// judge returns the name of the node that a request is about, and an error unless it is to be approved. nodes are all there
// are.
func (j *judge) judge(csr kubeapi.CSR, nodes []corev1.Node) (string, error) {
	if csr.Signer == kubeapi.SignerKubeletClient && !byToken(csr) {
		return "", errNotOurs
	}
	block, rest := pem.Decode(csr.PEM)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(rest) > 0 {
		return "", errors.New("the request is not one PEM block")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = req.CheckSignature()
	}
	if err != nil {
		return "", fmt.Errorf("the request cannot be read: %w", err)
	}
	name, ok := strings.CutPrefix(req.Subject.CommonName, pki.NodeUser(""))
	if !ok || len(validation.IsDNS1123Subdomain(name)) > 0 || !slices.Equal(req.Subject.Organization, []string{pki.GroupNodes}) {
		return name, fmt.Errorf("the subject is %s, and not that of a node", req.Subject)
	}
	if name == j.controlPlane {
		return name, fmt.Errorf("%s is the node of the control plane: take another name (--set nodeName=NAME)", name)
	}
	if slices.Contains(j.names, name) {
		return name, fmt.Errorf("%s is a name of the API server: take another name (--set nodeName=NAME)", name)
	}
	if len(req.EmailAddresses)+len(req.URIs) > 0 {
		return name, errors.New("it wants names other than DNS names and addresses")
	}
	if csr.Signer == kubeapi.SignerKubeletClient {
		return name, judgeClient(csr, req, name, nodes)
	}
	return name, j.judgeServing(csr, req, name, nodes)
}

// byToken tells whether a holder of a bootstrap token of ours asks.
func byToken(csr kubeapi.CSR) bool {
	return strings.HasPrefix(csr.Username, kubeapi.BootstrapUserPrefix) && slices.Contains(csr.Groups, kubeapi.BootstrapGroup)
}

// judgeClient: whoever has a bootstrap token may become a node whose name is free, or whose node has gone silent. Of a node
// from which nothing is heard, and of one that never reported, the control plane says Unknown after a minute at most.
func judgeClient(csr kubeapi.CSR, req *x509.CertificateRequest, name string, nodes []corev1.Node) error {
	if len(req.DNSNames)+len(req.IPAddresses) > 0 {
		return errors.New("a client certificate has no names of servers")
	}
	if err := uses(csr, "client auth"); err != nil {
		return err
	}
	for i := range nodes {
		if nodes[i].Name == name && !silent(&nodes[i]) {
			return fmt.Errorf("there is a node %s already, and it has not been silent for a minute: take another name (--set nodeName=NAME), "+
				"or delete that Node object", name)
		}
	}
	return nil
}

func silent(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
	})
}

// judgeServing: a node may serve under its own name and the addresses that it alone has. A node writes its own addresses, so
// what is the API server's, or in the cluster's networks, is nobody's whatever a Node object says.
func (j *judge) judgeServing(csr kubeapi.CSR, req *x509.CertificateRequest, name string, nodes []corev1.Node) error {
	if csr.Username != req.Subject.CommonName || !slices.Contains(csr.Groups, pki.GroupNodes) {
		return fmt.Errorf("%s asks for a certificate of node %s", csr.Username, name)
	}
	if err := uses(csr, "server auth"); err != nil {
		return err
	}
	if len(req.DNSNames)+len(req.IPAddresses) == 0 {
		return errors.New("it names no server")
	}
	for _, dns := range req.DNSNames {
		if dns != name {
			return fmt.Errorf("DNS name %s is not the node's", dns)
		}
	}
	owners := addressOwners(nodes)
	for _, ip := range req.IPAddresses {
		a, _ := netip.AddrFromSlice(ip) // 4 or 16 bytes, or it would not have been read
		a = a.Unmap()
		switch has := owners[a]; {
		case slices.Contains(j.addresses, a):
			return fmt.Errorf("address %s is the API server's", a)
		case slices.ContainsFunc(j.networks, func(p netip.Prefix) bool { return p.Contains(a) }):
			return fmt.Errorf("address %s is one of Services or pods", a)
		case a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || len(has) == 0:
			return fmt.Errorf("address %s is not the node's", a)
		case len(has) > 1:
			return fmt.Errorf("address %s is that of more than one node: %s", a, strings.Join(has, ", "))
		case has[0] != name:
			return fmt.Errorf("address %s is that of %s", a, has[0])
		}
	}
	return nil
}

// addressOwners are the nodes that have an address, by what their Node objects say.
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

// uses: what it is for, and besides at most what any key of TLS is for.
func uses(csr kubeapi.CSR, purpose string) error {
	for _, u := range csr.Usages {
		if u != purpose && u != "digital signature" && u != "key encipherment" {
			return fmt.Errorf("use %q is not one of a node", u)
		}
	}
	if !slices.Contains(csr.Usages, purpose) {
		return fmt.Errorf("it is not for %q", purpose)
	}
	return nil
}
