package child

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/url"
	"testing"

	"gotest.tools/v3/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
)

// csrOf signs a request as a node's kubelet would, changed by edit.
func csrOf(t *testing.T, edit func(*x509.CertificateRequest)) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NilError(t, err)
	req := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:b", Organization: []string{"system:nodes"}}}
	if edit != nil {
		edit(req)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, req, key)
	assert.NilError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func clusterNode(name, ip string, ready corev1.ConditionStatus) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}, {Type: corev1.NodeHostName, Address: name}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
	}}
}

func TestJudgeClient(t *testing.T) {
	t.Parallel()
	nodes := []corev1.Node{
		clusterNode("a", "10.99.0.1", corev1.ConditionTrue), clusterNode("silent", "10.99.0.4", corev1.ConditionUnknown),
		clusterNode("busy", "10.99.0.5", corev1.ConditionTrue),
	}
	named := func(name string) func(*x509.CertificateRequest) {
		return func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:node:" + name }
	}
	for name, tc := range map[string]struct {
		edit   func(*x509.CertificateRequest)
		change func(*kubeapi.CSR)
		want   string // of the error; empty: approved
	}{
		"a new node":           {nil, nil, ""},
		"one that went silent": {named("silent"), nil, ""},
		"the control plane's":  {named("a"), nil, "is the node of the control plane"},
		"one that is there":    {named("busy"), nil, "there is a node busy already"},
		"no node":              {func(r *x509.CertificateRequest) { r.Subject.CommonName = "admin" }, nil, "not that of a node"},
		"no name":              {named(""), nil, "not that of a node"},
		"another group":        {func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} }, nil, "not that of a node"},
		"one group more": {func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:nodes", "system:masters"} }, nil,
			"not that of a node"},
		"with an address":  {func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(10, 99, 0, 2)} }, nil, "no names of servers"},
		"with a URI":       {func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe"}} }, nil, "other than DNS names"},
		"to serve":         {nil, func(c *kubeapi.CSR) { c.Usages = []string{"server auth"} }, "is not one of a node"},
		"for nothing":      {nil, func(c *kubeapi.CSR) { c.Usages = []string{"digital signature"} }, "not for \"client auth\""},
		"no request":       {nil, func(c *kubeapi.CSR) { c.PEM = []byte("x") }, "no PEM block"},
		"a broken request": {nil, func(c *kubeapi.CSR) { c.PEM[60] ^= 1 }, "cannot be read"},
		"somebody else's":  {nil, func(c *kubeapi.CSR) { c.Groups = []string{"system:nodes"} }, "not ours to decide"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			csr := kubeapi.CSR{
				Signer: kubeapi.SignerKubeletClient, Username: "system:bootstrap:abcdef", Groups: []string{kubeapi.BootstrapGroup},
				Usages: []string{"digital signature", "client auth"}, PEM: csrOf(t, tc.edit),
			}
			if tc.change != nil {
				tc.change(&csr)
			}
			_, err := judge(csr, nodes, "a")
			if tc.want == "" {
				assert.NilError(t, err)
			} else {
				assert.ErrorContains(t, err, tc.want)
			}
		})
	}
}

func TestJudgeServing(t *testing.T) {
	t.Parallel()
	nodes := []corev1.Node{
		clusterNode("a", "10.99.0.1", corev1.ConditionTrue), clusterNode("b", "10.99.0.2", corev1.ConditionUnknown),
		clusterNode("liar", "10.99.0.1", corev1.ConditionTrue),
	}
	right := func(r *x509.CertificateRequest) {
		r.DNSNames, r.IPAddresses = []string{"b"}, []net.IP{net.IPv4(10, 99, 0, 2)}
	}
	for name, tc := range map[string]struct {
		edit   func(*x509.CertificateRequest)
		change func(*kubeapi.CSR)
		want   string
	}{
		"its name and address":   {right, nil, ""},
		"nothing":                {nil, nil, "names no server"},
		"another's address":      {func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(10, 99, 0, 1)} }, nil, "is that of more than one node"},
		"an address of nobody":   {func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(10, 43, 0, 1)} }, nil, "is not the node's"},
		"loopback":               {func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} }, nil, "is not the node's"},
		"another name":           {func(r *x509.CertificateRequest) { r.DNSNames = []string{"kubernetes"} }, nil, "is not the node's"},
		"for another node":       {right, func(c *kubeapi.CSR) { c.Username = "system:node:c" }, "asks for a certificate of node b"},
		"by a bootstrap token":   {right, func(c *kubeapi.CSR) { c.Groups = []string{kubeapi.BootstrapGroup} }, "asks for a certificate"},
		"to be a client as well": {right, func(c *kubeapi.CSR) { c.Usages = []string{"server auth", "client auth"} }, "is not one of a node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			csr := kubeapi.CSR{
				Signer: kubeapi.SignerKubeletServing, Username: "system:node:b", Groups: []string{"system:nodes"},
				Usages: []string{"digital signature", "server auth"}, PEM: csrOf(t, tc.edit),
			}
			if tc.change != nil {
				tc.change(&csr)
			}
			_, err := judge(csr, nodes, "a")
			if tc.want == "" {
				assert.NilError(t, err)
			} else {
				assert.ErrorContains(t, err, tc.want)
			}
		})
	}
}
