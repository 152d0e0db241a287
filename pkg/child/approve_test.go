package child

import (
	"bytes"
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

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/component"
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

// theJudge is that of a control plane on node a at 10.99.0.1, with default networks.
func theJudge(t *testing.T) *judge {
	t.Helper()
	cfg := config.Default()
	cfg.NodeName, cfg.API.BindAddress, cfg.API.ExtraSANs = "a", "0.0.0.0", []string{"Api.Example.com", "192.0.2.77"}
	cfg.Complete(config.HostFacts{Hostname: "host"})
	j, err := newJudge(component.Env{Config: cfg, HostName: "a", NodeIP: "10.0.2.100", PublicIP: "10.99.0.1"})
	assert.NilError(t, err)
	return j
}

// judged checks what the judge says: an error with want, or none.
func judged(t *testing.T, csr kubeapi.CSR, change func(*kubeapi.CSR), nodes []corev1.Node, want string) {
	t.Helper()
	if change != nil {
		change(&csr)
	}
	_, err := theJudge(t).judge(csr, nodes)
	if want == "" {
		assert.NilError(t, err)
		return
	}
	assert.ErrorContains(t, err, want)
}

func TestJudgeClient(t *testing.T) {
	t.Parallel()
	nodes := []corev1.Node{
		clusterNode("a", "10.99.0.1", corev1.ConditionTrue), clusterNode("silent", "10.99.0.4", corev1.ConditionUnknown),
		clusterNode("busy", "10.99.0.5", corev1.ConditionTrue), clusterNode("troubled", "10.99.0.6", corev1.ConditionFalse),
		{ObjectMeta: metav1.ObjectMeta{Name: "young"}},
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
		"one that speaks":      {named("troubled"), nil, "there is a node troubled already"},
		"one that just came":   {named("young"), nil, "there is a node young already"},
		"the Service's":        {named("kubernetes.default.svc"), nil, "is a name of the API server"},
		"this host":            {named("localhost"), nil, "is a name of the API server"},
		"a name of config":     {named("api.example.com"), nil, "is a name of the API server"},
		"no name of a node":    {named("*.default.svc"), nil, "not that of a node"},
		"a name in capitals":   {named("A"), nil, "not that of a node"},
		"no node":              {func(r *x509.CertificateRequest) { r.Subject.CommonName = "admin" }, nil, "not that of a node"},
		"no name":              {named(""), nil, "not that of a node"},
		"another group":        {func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} }, nil, "not that of a node"},
		"one group more": {func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:nodes", "system:masters"} }, nil,
			"not that of a node"},
		"with an address":   {func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(10, 99, 0, 2)} }, nil, "no names of servers"},
		"with a URI":        {func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe"}} }, nil, "other than DNS names"},
		"to serve":          {nil, func(c *kubeapi.CSR) { c.Usages = []string{"server auth"} }, "is not one of a node"},
		"for nothing":       {nil, func(c *kubeapi.CSR) { c.Usages = []string{"digital signature"} }, "not for \"client auth\""},
		"no request":        {nil, func(c *kubeapi.CSR) { c.PEM = []byte("x") }, "not one PEM block"},
		"two requests":      {nil, func(c *kubeapi.CSR) { c.PEM = append(c.PEM, c.PEM...) }, "not one PEM block"},
		"another block":     {nil, func(c *kubeapi.CSR) { c.PEM = bytes.ReplaceAll(c.PEM, []byte(" REQUEST"), nil) }, "not one PEM block"},
		"no bootstrap user": {nil, func(c *kubeapi.CSR) { c.Username = "system:serviceaccount:default:x" }, "not ours to decide"},
		"somebody else's, not for a node": {func(r *x509.CertificateRequest) { r.Subject.CommonName = "x" }, func(c *kubeapi.CSR) { c.Groups = nil },
			"not ours to decide"},
		"a broken request": {nil, func(c *kubeapi.CSR) { c.PEM[60] ^= 1 }, "cannot be read"},
		"somebody else's":  {nil, func(c *kubeapi.CSR) { c.Groups = []string{"system:nodes"} }, "not ours to decide"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			csr := kubeapi.CSR{
				Signer: kubeapi.SignerKubeletClient, Username: "system:bootstrap:abcdef", Groups: []string{kubeapi.BootstrapGroup},
				Usages: []string{"digital signature", "client auth"}, PEM: csrOf(t, tc.edit),
			}
			judged(t, csr, tc.change, nodes, tc.want)
		})
	}
}

func TestJudgeServing(t *testing.T) {
	t.Parallel()
	own, liar := clusterNode("b", "10.99.0.2", corev1.ConditionUnknown), clusterNode("liar", "10.99.0.1", corev1.ConditionTrue)
	for _, more := range []string{"fd00::2", "::ffff:10.99.0.8", "10.43.0.1", "10.42.1.1", "10.0.2.100", "192.0.2.77", "127.0.0.1", "10.99.0.7", "10.99.0.2", "what"} {
		own.Status.Addresses = append(own.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: more})
	}
	for _, more := range []string{"::ffff:10.99.0.7", "10.99.0.9"} {
		liar.Status.Addresses = append(liar.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: more})
	}
	nodes := []corev1.Node{clusterNode("a", "10.99.0.1", corev1.ConditionTrue), own, liar}
	at := func(addresses ...string) func(*x509.CertificateRequest) {
		return func(r *x509.CertificateRequest) {
			for _, a := range addresses {
				r.IPAddresses = append(r.IPAddresses, net.ParseIP(a))
			}
		}
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
		"all its addresses":      {at("10.99.0.2", "10.99.0.2", "fd00::2", "10.99.0.8"), nil, ""},
		"the API server's":       {at("10.99.0.1"), nil, "is the API server's"},
		"another's address":      {at("10.99.0.2", "10.99.0.9"), nil, "is that of liar"},
		"two nodes' address":     {at("10.99.0.7"), nil, "is that of more than one node: b, liar"},
		"an address of nobody":   {at("10.99.0.3"), nil, "is not the node's"},
		"the Service kubernetes": {at("10.43.0.1"), nil, "is the API server's"},
		"a Service":              {at("10.43.0.10"), nil, "is one of Services or pods"},
		"a pod":                  {at("10.42.1.1"), nil, "is one of Services or pods"},
		"the address inside":     {at("10.0.2.100"), nil, "is the API server's"},
		"an address of config":   {at("192.0.2.77"), nil, "is the API server's"},
		"loopback":               {at("127.0.0.1"), nil, "is the API server's"},
		"other loopback":         {at("127.0.0.2"), nil, "is not the node's"},
		"no address":             {at("0.0.0.0"), nil, "is not the node's"},
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
			judged(t, csr, tc.change, nodes, tc.want)
		})
	}
}
