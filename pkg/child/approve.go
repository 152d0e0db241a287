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

	corev1 "k8s.io/api/core/v1"

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
	ready()
	return c.WatchCertificateRequests(ctx, func(csr kubeapi.CSR) {
		if !csr.Pending() || csr.Signer != kubeapi.SignerKubeletClient && csr.Signer != kubeapi.SignerKubeletServing {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.Health.D())
		defer cancel()
		nodes, err := c.Nodes(ctx)
		if err == nil {
			err = n.decide(ctx, c, csr, nodes)
		}
		if err != nil {
			n.log.WithError(err).WithField("request", csr.Name).Warn("a node's certificate request is not decided")
		}
	})
}

func (n *nodeRole) decide(ctx context.Context, c *kubeapi.Client, csr kubeapi.CSR, nodes []corev1.Node) error {
	who, err := judge(csr, nodes, n.cfg.NodeName)
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

// judge returns the name of the node that a request is about, and an error unless it is to be approved. nodes are all there
// are; controlPlane is the one that nobody may become.
func judge(csr kubeapi.CSR, nodes []corev1.Node, controlPlane string) (string, error) {
	block, rest := pem.Decode(csr.PEM)
	if block == nil || len(rest) > 0 {
		return "", errors.New("the request is no PEM block")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = req.CheckSignature()
	}
	if err != nil {
		return "", fmt.Errorf("the request cannot be read: %w", err)
	}
	name, ok := strings.CutPrefix(req.Subject.CommonName, pki.NodeUser(""))
	if !ok || name == "" || !slices.Equal(req.Subject.Organization, []string{pki.GroupNodes}) {
		return name, fmt.Errorf("the subject is %s, and not that of a node", req.Subject)
	}
	if len(req.EmailAddresses)+len(req.URIs) > 0 {
		return name, errors.New("it wants names other than DNS names and addresses")
	}
	if csr.Signer == kubeapi.SignerKubeletClient {
		return name, judgeClient(csr, req, name, nodes, controlPlane)
	}
	return name, judgeServing(csr, req, name, nodes)
}

// judgeClient: a holder of a bootstrap token of ours may become a node whose name is free, or whose node has gone silent.
func judgeClient(csr kubeapi.CSR, req *x509.CertificateRequest, name string, nodes []corev1.Node, controlPlane string) error {
	if !slices.Contains(csr.Groups, kubeapi.BootstrapGroup) {
		return errNotOurs
	}
	if len(req.DNSNames)+len(req.IPAddresses) > 0 {
		return errors.New("a client certificate has no names of servers")
	}
	if err := uses(csr, "client auth"); err != nil {
		return err
	}
	if name == controlPlane {
		return fmt.Errorf("%s is the node of the control plane: take another name (--set nodeName=NAME)", name)
	}
	for i := range nodes {
		if ready, _ := kubeapi.NodeReady(&nodes[i]); nodes[i].Name == name && ready {
			return fmt.Errorf("there is a node %s already, and it is Ready: take another name (--set nodeName=NAME)", name)
		}
	}
	return nil
}

// judgeServing: a node may serve under its own name and the addresses that it alone has.
func judgeServing(csr kubeapi.CSR, req *x509.CertificateRequest, name string, nodes []corev1.Node) error {
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
	owner := map[string]string{}
	for _, node := range nodes {
		for _, a := range node.Status.Addresses {
			if (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) && owner[a.Address] != "" && owner[a.Address] != node.Name {
				owner[a.Address] = "more than one node"
			} else if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
				owner[a.Address] = node.Name
			}
		}
	}
	for _, ip := range req.IPAddresses {
		a, _ := netip.AddrFromSlice(ip)
		switch has := owner[a.Unmap().String()]; {
		case a.IsLoopback() || a.IsUnspecified() || has == "":
			return fmt.Errorf("address %s is not the node's", a.Unmap())
		case has != name:
			return fmt.Errorf("address %s is that of %s", a.Unmap(), has)
		}
	}
	return nil
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
