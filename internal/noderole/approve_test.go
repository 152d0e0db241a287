package noderole

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
)

// csrOf returns a certificate request as a node's kubelet would create it, changed by edit.
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

// testPolicy returns the policy of a control plane on node a at 10.99.0.1, with default networks.
func testPolicy(t *testing.T) *csrPolicy {
	t.Helper()
	cfg := config.Default()
	cfg.NodeName, cfg.API.BindAddress, cfg.API.ExtraSANs = "a", "0.0.0.0", []string{"Api.Example.com", "*.Wild.example.com", "192.0.2.77"}
	cfg.Complete(config.HostFacts{Hostname: "host"})
	policy, err := newCSRPolicy(component.Env{Config: cfg, HostName: "a", NodeIP: "10.0.2.100", PublicIP: "10.99.0.1"})
	assert.NilError(t, err)
	return policy
}

// checkDecision checks that the policy returns an error that contains want, or no error if want is empty.
func checkDecision(t *testing.T, csr kubeapi.CSR, change func(*kubeapi.CSR), f *facts, want string) {
	t.Helper()
	if change != nil {
		change(&csr)
	}
	p, err := parseNodeRequest(csr)
	if err == nil {
		err = testPolicy(t).check(p, f)
	}
	if want == "" {
		assert.NilError(t, err)
		return
	}
	assert.ErrorContains(t, err, want)
}

func named(name string) func(*x509.CertificateRequest) {
	return func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:node:" + name }
}

func TestCheckFirstCertificate(t *testing.T) {
	t.Parallel()
	f := &facts{nodes: []corev1.Node{clusterNode("a", "10.99.0.1", corev1.ConditionTrue)}, token: &kubeapi.BootstrapToken{ID: "abcdef"}}
	for name, tc := range map[string]struct {
		edit   func(*x509.CertificateRequest)
		change func(*kubeapi.CSR)
		want   string // part of the error; empty if approved
	}{
		"a new node":           {nil, nil, ""},
		"the control plane's":  {named("a"), nil, "is the node of the control plane"},
		"the Service's":        {named("kubernetes.default.svc"), nil, "is a name of the cluster"},
		"this host":            {named("localhost"), nil, "is a name of the cluster"},
		"a name of config":     {named("api.example.com"), nil, "is a name of the API server"},
		"a wildcard of config": {named("x.wild.example.com"), nil, "is a name of the API server"},
		"a wildcard":           {named("*.default.svc"), nil, "is not a node"},
		"a name in capitals":   {named("A"), nil, "is not a node"},
		"an underscore":        {named("a_b"), nil, "is not a node"},
		"a trailing dot":       {named("b."), nil, "is not a node"},
		"no node":              {func(r *x509.CertificateRequest) { r.Subject.CommonName = "admin" }, nil, "is not a node"},
		"no name":              {named(""), nil, "is not a node"},
		"another group":        {func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} }, nil, "is not a node"},
		"one group more": {func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:nodes", "system:masters"} }, nil,
			"is not a node"},
		"a public name":     {named("github.com"), nil, "create a token for this name"},
		"with an address":   {func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(10, 99, 0, 2)} }, nil, "must not contain server names"},
		"with a URI":        {func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe"}} }, nil, "other than DNS names"},
		"to serve":          {nil, func(c *kubeapi.CSR) { c.Usages = []string{"server auth"} }, "is not allowed for a node"},
		"without a purpose": {nil, func(c *kubeapi.CSR) { c.Usages = []string{"digital signature"} }, "usage \"client auth\" is missing"},
		"no request":        {nil, func(c *kubeapi.CSR) { c.PEM = []byte("x") }, "not a single PEM block"},
		"two requests":      {nil, func(c *kubeapi.CSR) { c.PEM = append(c.PEM, c.PEM...) }, "not a single PEM block"},
		"another block":     {nil, func(c *kubeapi.CSR) { c.PEM = bytes.ReplaceAll(c.PEM, []byte(" REQUEST"), nil) }, "not a single PEM block"},
		"no bootstrap user": {nil, func(c *kubeapi.CSR) { c.Username = "system:serviceaccount:default:x" }, "not for this approver"},
		"another user's, not for a node": {func(r *x509.CertificateRequest) { r.Subject.CommonName = "x" }, func(c *kubeapi.CSR) { c.Groups = nil },
			"not for this approver"},
		"a broken request": {nil, func(c *kubeapi.CSR) { c.PEM[60] ^= 1 }, "parse the request"},
		"by no group":      {nil, func(c *kubeapi.CSR) { c.Groups = []string{"system:bootstrappers"} }, "not for this approver"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			csr := kubeapi.CSR{
				Signer: kubeapi.SignerKubeletClient, Username: "system:bootstrap:abcdef", Groups: []string{kubeapi.BootstrapGroup},
				Usages: []string{"digital signature", "client auth"}, PEM: csrOf(t, tc.edit),
			}
			checkDecision(t, csr, tc.change, f, tc.want)
		})
	}
}

// TestCheckToken checks which token may have which name: a token that is not bound to a name never gets that of an
// existing Node object, regardless of the object's status.
func TestCheckToken(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	node := func(age time.Duration, ready corev1.ConditionStatus) corev1.Node {
		n := clusterNode("b", "10.99.0.2", ready)
		n.CreationTimestamp = metav1.NewTime(now.Add(-age))
		return n
	}
	free, bound := &kubeapi.BootstrapToken{ID: "abcdef"}, &kubeapi.BootstrapToken{ID: "abcdef", NodeName: "b", SingleUse: true}
	usedBy := func(name string) *kubeapi.BootstrapToken {
		return &kubeapi.BootstrapToken{ID: "abcdef", SingleUse: true, UsedBy: name}
	}
	const day = 24 * time.Hour
	for name, tc := range map[string]struct {
		token   *kubeapi.BootstrapToken
		nodes   []corev1.Node
		renewed time.Duration // ago; 0: no Lease
		claimed bool
		want    string
	}{
		"a free name":                         {free, nil, 0, false, ""},
		"a free name, bound":                  {bound, nil, 0, false, ""},
		"a deleted token":                     {nil, nil, 0, false, "has expired or was deleted"},
		"bound to another":                    {&kubeapi.BootstrapToken{ID: "abcdef", NodeName: "c"}, nil, 0, false, "is valid for node c only"},
		"used by another":                     {usedBy("c"), nil, 0, false, "was used by node c"},
		"used by itself":                      {usedBy("b"), []corev1.Node{node(day, corev1.ConditionUnknown)}, time.Hour, false, ""},
		"an existing node":                    {free, []corev1.Node{node(day, corev1.ConditionTrue)}, time.Second, false, "node b already exists"},
		"a node that reports Unknown":         {free, []corev1.Node{node(day, corev1.ConditionUnknown)}, time.Second, false, "node b already exists"},
		"an inactive node":                    {free, []corev1.Node{node(day, corev1.ConditionUnknown)}, time.Hour, false, "create a token for this name"},
		"bound, active":                       {bound, []corev1.Node{node(day, corev1.ConditionUnknown)}, 59 * time.Second, false, "active within the last minute"},
		"bound, inactive":                     {bound, []corev1.Node{node(day, corev1.ConditionTrue)}, 61 * time.Second, false, ""},
		"bound, no Lease, new":                {bound, []corev1.Node{node(time.Second, "")}, 0, false, "active within the last minute"},
		"bound, no Lease, old":                {bound, []corev1.Node{node(day, "")}, 0, false, ""},
		"bound, the Lease of an earlier Node": {bound, []corev1.Node{node(time.Second, "")}, time.Hour, false, "active within the last minute"},
		"the request that reserved the name":  {free, []corev1.Node{node(time.Second, "")}, 0, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &facts{now: now, nodes: tc.nodes, token: tc.token, claimed: tc.claimed}
			if tc.renewed > 0 {
				f.leaseRenewed = now.Add(-tc.renewed)
			}
			checkDecision(t, kubeapi.CSR{
				Signer: kubeapi.SignerKubeletClient, Username: "system:bootstrap:abcdef", Groups: []string{kubeapi.BootstrapGroup},
				Usages: []string{"digital signature", "client auth"}, PEM: csrOf(t, nil),
			}, nil, f, tc.want)
		})
	}
}

// TestCheckRenewal checks that a node can renew only its own certificate, and only while its Node object exists.
func TestCheckRenewal(t *testing.T) {
	t.Parallel()
	leaving := clusterNode("b", "10.99.0.2", corev1.ConditionTrue)
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for name, tc := range map[string]struct {
		nodes  []corev1.Node
		change func(*kubeapi.CSR)
		want   string
	}{
		"its own":          {[]corev1.Node{clusterNode("b", "10.99.0.2", corev1.ConditionTrue)}, nil, ""},
		"of a removed one": {nil, nil, "there is no Node object b"},
		"of a leaving one": {[]corev1.Node{leaving}, nil, "there is no Node object b"},
		"another's": {[]corev1.Node{clusterNode("b", "10.99.0.2", corev1.ConditionTrue)},
			func(c *kubeapi.CSR) { c.Username = "system:node:c" }, "requests a certificate of node b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkDecision(t, kubeapi.CSR{
				Signer: kubeapi.SignerKubeletClient, Username: "system:node:b", Groups: []string{"system:nodes"},
				Usages: []string{"digital signature", "client auth"}, PEM: csrOf(t, nil),
			}, tc.change, &facts{nodes: tc.nodes}, tc.want)
		})
	}
}

func TestForeignDomain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		hosts []string
		want  bool
	}{
		"worker":                {nil, false},
		"github.com":            {[]string{"node-a", "cluster.example.com"}, true},
		"mail.com":              {[]string{"example.com"}, true}, // a top-level domain is not a network of hosts
		"worker.example.com":    {[]string{"node-a", "Cluster.Example.com"}, false},
		"a.worker.example.com":  {[]string{"cluster.example.com"}, true},
		"worker.localdomain":    {[]string{"cluster.localdomain"}, false},
		"worker.other.internal": {[]string{"cluster.internal"}, true},
	} {
		assert.Equal(t, newReservedNames(nil, "cluster.local", tc.hosts...).foreignDomain(name), tc.want, name)
	}
}

func TestReservedNames(t *testing.T) {
	t.Parallel()
	r := newReservedNames([]string{"kubernetes", "Node-A", "*.T5.test", "api.example.com."}, "Cluster.Local.")
	for _, name := range []string{
		"kubernetes", "node-a", "api.t5.test", "API.T5.TEST", "api.t5.test.", "api.example.com", "localhost", "a.localhost",
		"webhook.default.svc", "svc", "x.svc.cluster.local", "kube-dns.kube-system.svc.cluster.local", "cluster.local", "a.pod.cluster.local",
		"webhook.default", "kube-dns.kube-system", "host.rootlessnode.internal", "10.99.0.1", "127.1", "0x7f000001", "x.1", "::1",
	} {
		assert.Assert(t, r.reserved(name) != "", name)
	}
	for _, name := range []string{"b", "worker-1", "t5.test", "a.b.t5.test", "xn--bcher-kva.example.com", "svc.example.com", "node1.localdomain", "a1"} {
		assert.Equal(t, r.reserved(name), "", name)
	}
}

func TestCheckServing(t *testing.T) {
	t.Parallel()
	own, impostor := clusterNode("b", "10.99.0.2", corev1.ConditionUnknown), clusterNode("impostor", "10.99.0.1", corev1.ConditionTrue)
	for _, more := range []string{"fd00::2", "::ffff:10.99.0.8", "10.43.0.1", "10.42.1.1", "10.0.2.100", "192.0.2.77", "127.0.0.1", "10.99.0.7", "10.99.0.2", "what"} {
		own.Status.Addresses = append(own.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: more})
	}
	for _, more := range []string{"::ffff:10.99.0.7", "10.99.0.9"} {
		impostor.Status.Addresses = append(impostor.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: more})
	}
	nodes := []corev1.Node{clusterNode("a", "10.99.0.1", corev1.ConditionTrue), own, impostor}
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
		"nothing":                {nil, nil, "contains no server names"},
		"all its addresses":      {at("10.99.0.2", "10.99.0.2", "fd00::2", "10.99.0.8"), nil, ""},
		"the API server's":       {at("10.99.0.1"), nil, "belongs to the API server"},
		"another's address":      {at("10.99.0.2", "10.99.0.9"), nil, "belongs to node impostor"},
		"two nodes' address":     {at("10.99.0.7"), nil, "belongs to more than one node: b, impostor"},
		"an unused address":      {at("10.99.0.3"), nil, "does not belong to the node"},
		"the Service kubernetes": {at("10.43.0.1"), nil, "belongs to the API server"},
		"a Service":              {at("10.43.0.10"), nil, "is in the Service or pod network"},
		"a pod":                  {at("10.42.1.1"), nil, "is in the Service or pod network"},
		"the address inside":     {at("10.0.2.100"), nil, "belongs to the API server"},
		"an address of config":   {at("192.0.2.77"), nil, "belongs to the API server"},
		"loopback":               {at("127.0.0.1"), nil, "belongs to the API server"},
		"other loopback":         {at("127.0.0.2"), nil, "does not belong to the node"},
		"no address":             {at("0.0.0.0"), nil, "does not belong to the node"},
		"another name":           {func(r *x509.CertificateRequest) { r.DNSNames = []string{"kubernetes"} }, nil, "does not belong to the node"},
		"without a Node object":  {func(r *x509.CertificateRequest) { named("c")(r); r.DNSNames = []string{"c"} }, func(c *kubeapi.CSR) { c.Username = "system:node:c" }, "there is no Node object c"},
		"for another node":       {right, func(c *kubeapi.CSR) { c.Username = "system:node:c" }, "requests a certificate of node b"},
		"by a bootstrap token":   {right, func(c *kubeapi.CSR) { c.Groups = []string{kubeapi.BootstrapGroup} }, "requests a certificate"},
		"to be a client as well": {right, func(c *kubeapi.CSR) { c.Usages = []string{"server auth", "client auth"} }, "is not allowed for a node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			csr := kubeapi.CSR{
				Signer: kubeapi.SignerKubeletServing, Username: "system:node:b", Groups: []string{"system:nodes"},
				Usages: []string{"digital signature", "server auth"}, PEM: csrOf(t, tc.edit),
			}
			checkDecision(t, csr, tc.change, &facts{nodes: nodes}, tc.want)
		})
	}
}

// tokenCluster is the part of a cluster's state that the approver changes.
type tokenCluster struct {
	nodes    []any
	tokens   map[string]map[string]any // annotations by ID
	approved []string                  // names of the requests
	denied   []string
	refuse   int                  // how many approvals fail
	renewed  map[string]time.Time // renewal times of the Leases, by node
}

func (c *tokenCluster) answer(t *testing.T, all []any) func(r *http.Request) (int, any) {
	const csrs, secrets = "/apis/certificates.k8s.io/v1/certificatesigningrequests", "/api/v1/namespaces/kube-system/secrets"
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"
	notFound := map[string]any{"kind": "Status", "code": 404, "reason": "NotFound"}
	secret := func(id string) map[string]any {
		return map[string]any{"metadata": map[string]any{"annotations": c.tokens[id]}, "data": map[string]any{"token-id": []byte(id)}}
	}
	return func(r *http.Request) (int, any) {
		path, id := r.URL.Path, strings.TrimPrefix(r.URL.Path, secrets+"/bootstrap-token-")
		switch {
		case path == csrs:
			return http.StatusOK, map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": all}
		case r.Method == http.MethodPut && c.refuse > 0:
			c.refuse--
			return http.StatusConflict, map[string]any{"kind": "Status", "code": 409, "reason": "Conflict"}
		case r.Method == http.MethodPut:
			name := strings.Split(strings.TrimPrefix(path, csrs+"/"), "/")[0]
			var body struct {
				Status struct{ Conditions []struct{ Type string } }
			}
			assert.Check(t, json.NewDecoder(r.Body).Decode(&body))
			if body.Status.Conditions[0].Type == "Approved" {
				c.approved = append(c.approved, name)
			} else {
				c.denied = append(c.denied, name)
			}
			return http.StatusOK, map[string]any{}
		case strings.HasPrefix(path, csrs):
			for _, one := range all {
				if meta := one.(map[string]any)["metadata"].(map[string]any); strings.HasSuffix(path, "/"+meta["name"].(string)) {
					return http.StatusOK, one
				}
			}
		case path == "/api/v1/nodes" && r.Method == http.MethodPost:
			var node map[string]any
			assert.Check(t, json.NewDecoder(r.Body).Decode(&node))
			node["metadata"].(map[string]any)["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
			c.nodes = append(c.nodes, node)
			return http.StatusCreated, node
		case path == "/api/v1/nodes":
			return http.StatusOK, map[string]any{"items": c.nodes}
		case path == secrets:
			items := []any{}
			for id := range c.tokens {
				items = append(items, secret(id))
			}
			return http.StatusOK, map[string]any{"items": items}
		case strings.HasPrefix(path, leases):
			node := strings.TrimPrefix(path, leases)
			if r.Method == http.MethodPatch {
				var body struct{ Spec struct{ RenewTime time.Time } }
				assert.Check(t, json.NewDecoder(r.Body).Decode(&body))
				c.renewed[node] = body.Spec.RenewTime
			}
			if !c.renewed[node].IsZero() {
				return http.StatusOK, map[string]any{"spec": map[string]any{"renewTime": metav1.NewMicroTime(c.renewed[node])}}
			}
		case c.tokens[id] == nil:
		case r.Method == http.MethodDelete:
			delete(c.tokens, id)
			return http.StatusOK, map[string]any{}
		case r.Method == http.MethodPatch:
			var body struct {
				Metadata struct{ Annotations map[string]any }
			}
			assert.Check(t, json.NewDecoder(r.Body).Decode(&body))
			maps.Copy(c.tokens[id], body.Metadata.Annotations)
			return http.StatusOK, map[string]any{}
		default:
			return http.StatusOK, secret(id)
		}
		return http.StatusNotFound, notFound
	}
}

// testApprover returns the approver of the control plane's node a.
func testApprover(client clientFunc) *approver {
	cfg := testConfig()
	cfg.NodeName, cfg.API.BindAddress = "a", "0.0.0.0"
	return &approver{
		env: component.Env{Config: cfg, HostName: "a", NodeIP: "10.0.2.100", PublicIP: "10.99.0.1"},
		log: logrus.New(), client: client, claims: map[string]string{},
	}
}

// TestApproveOneNodeAToken checks that only one of two requests for the same name is approved, that a token is valid
// for one node, that the Node object exists before the certificate, and that the token is deleted once the node has
// used the certificate.
func TestApproveOneNodeAToken(t *testing.T) {
	t.Parallel()
	csr := func(name, node, user, signer, use string, edit func(*x509.CertificateRequest)) any {
		group := kubeapi.BootstrapGroup
		if user == "system:node:"+node {
			group = "system:nodes"
		}
		return map[string]any{"metadata": map[string]any{"name": name, "uid": name}, "spec": map[string]any{
			"request": csrOf(t, func(r *x509.CertificateRequest) {
				named(node)(r)
				if edit != nil {
					edit(r)
				}
			}), "signerName": signer, "username": user, "groups": []string{group}, "usages": []string{use},
		}}
	}
	first := func(name, node, token string) any {
		return csr(name, node, "system:bootstrap:"+token, kubeapi.SignerKubeletClient, "client auth", nil)
	}
	single := func() map[string]any { return map[string]any{"rootlessnode.dev/single-use": "true"} }
	cluster := &tokenCluster{tokens: map[string]map[string]any{"abcdef": single(), "ghijkl": single(), "reuse1": {}}, refuse: 1, renewed: map[string]time.Time{}}
	api := &stubAPI{}
	a := testApprover(api.start(t))
	run := func(all ...any) {
		t.Helper()
		api.mu.Lock()
		api.answer = cluster.answer(t, all)
		api.mu.Unlock()
		c, err := a.client()
		assert.NilError(t, err)
		policy, err := newCSRPolicy(a.env)
		assert.NilError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		last := all[len(all)-1].(map[string]any)["metadata"].(map[string]any)["name"]
		_ = c.WatchCertificateRequests(ctx, func(r kubeapi.CSR) {
			if a.decide(ctx, c, policy, r) != nil { // the unit retries when it restarts
				assert.Check(t, a.decide(ctx, c, policy, r))
			}
			if r.Name == last {
				cancel()
			}
		})
	}
	run(first("one", "b", "abcdef"), first("two", "b", "ghijkl"), first("three", "c", "abcdef"))
	assert.DeepEqual(t, cluster.approved, []string{"one"})
	assert.DeepEqual(t, cluster.denied, []string{"two", "three"})
	assert.Equal(t, len(cluster.nodes), 1)
	assert.Equal(t, cluster.tokens["abcdef"]["rootlessnode.dev/used-by"], "b")
	c, err := a.client()
	assert.NilError(t, err)
	waiting, err := a.deleteUsedTokens(t.Context(), c)
	assert.NilError(t, err)
	assert.Assert(t, waiting && cluster.tokens["abcdef"] != nil, "the node has not used its certificate yet")
	cluster.renewed["b"] = time.Now().Add(time.Second)
	waiting, err = a.deleteUsedTokens(t.Context(), c)
	assert.NilError(t, err)
	assert.Assert(t, !waiting && cluster.tokens["abcdef"] == nil, "its node has used its certificate")
	run(csr("four", "b", "system:node:b", kubeapi.SignerKubeletServing, "server auth", func(r *x509.CertificateRequest) { r.DNSNames = []string{"b"} }),
		first("five", "c", "reuse1"), first("six", "d", "reuse1"))
	assert.DeepEqual(t, cluster.approved, []string{"one", "four", "five", "six"})
	assert.Assert(t, cluster.tokens["ghijkl"] != nil && cluster.tokens["reuse1"] != nil)
}
