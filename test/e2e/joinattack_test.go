package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// thief is a client of the API server on a worker's host that uses the credentials in the worker's data dir.
type thief struct {
	c      *joined
	client *http.Client
	server string
	// node is the Node object of the worker, and token a bootstrap token to use instead of the worker's certificate.
	node, token string
}

// thief copies the credentials of a worker.
func (c *joined) thief(i int) *thief {
	c.t.Helper()
	data := layout.NewData(c.nodes[i].status().DataDir)
	ca, err := os.ReadFile(data.ClusterCA())
	assert.NilError(c.t, err)
	roots := x509.NewCertPool()
	assert.Assert(c.t, roots.AppendCertsFromPEM(ca))
	current, err := os.Readlink(filepath.Join(data.KubeletPKI(), "kubelet-client-current.pem"))
	assert.NilError(c.t, err)
	file := filepath.Join(data.KubeletPKI(), filepath.Base(current))
	pair, err := tls.LoadX509KeyPair(file, file)
	assert.NilError(c.t, err)
	transport := &http.Transport{DialContext: c.hosts[i].dial, TLSClientConfig: &tls.Config{
		RootCAs: roots, MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
	}}
	c.t.Cleanup(transport.CloseIdleConnections)
	return &thief{
		c: c, client: &http.Client{Transport: transport, Timeout: podLimit}, server: c.nodes[i].status().APIServer, node: objectName(i),
	}
}

// with returns a thief that has a bootstrap token and no certificate.
func (k *thief) with(token string) *thief {
	other := *k
	transport := k.client.Transport.(*http.Transport).Clone()
	transport.TLSClientConfig.Certificates = nil
	k.c.t.Cleanup(transport.CloseIdleConnections)
	other.client, other.token = &http.Client{Transport: transport, Timeout: podLimit}, token
	return &other
}

func (k *thief) do(method, path, contentType, body string) (code int, answer string) {
	k.c.t.Helper()
	r, err := http.NewRequestWithContext(k.c.t.Context(), method, k.server+path, strings.NewReader(body))
	assert.NilError(k.c.t, err)
	r.Header.Set("Content-Type", contentType)
	if k.token != "" {
		r.Header.Set("Authorization", "Bearer "+k.token)
	}
	resp, err := k.client.Do(r)
	assert.NilError(k.c.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	assert.NilError(k.c.t, err)
	return resp.StatusCode, string(b)
}

const (
	mergePatch = "application/merge-patch+json"
	jsonBody   = "application/json"
	csrsPath   = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
)

// forbidden checks that the API server refuses a request with a message that contains why.
func (k *thief) forbidden(method, path, contentType, body, why string) {
	k.c.t.Helper()
	code, answer := k.do(method, path, contentType, body)
	assert.Equal(k.c.t, code, http.StatusForbidden, "%s %s: %s", method, path, answer)
	assert.Assert(k.c.t, cmp.Contains(answer, why))
}

// refusedCertificate requests a certificate, and checks that the request is refused or denied with a message that contains why.
func (k *thief) refusedCertificate(node, signer, usage, why string, names ...string) {
	k.c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NilError(k.c.t, err)
	request := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			request.IPAddresses = append(request.IPAddresses, ip)
		} else {
			request.DNSNames = append(request.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, request, key)
	assert.NilError(k.c.t, err)
	body, err := json.Marshal(map[string]any{
		"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": map[string]any{"generateName": "thief-"},
		"spec": map[string]any{
			"request":    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			"signerName": "kubernetes.io/" + signer, "usages": []string{"digital signature", usage},
		},
	})
	assert.NilError(k.c.t, err)
	code, answer := k.do(http.MethodPost, csrsPath, jsonBody, string(body))
	if code == http.StatusForbidden {
		assert.Assert(k.c.t, cmp.Contains(answer, why))
		return
	}
	assert.Equal(k.c.t, code, http.StatusCreated, "%s", answer)
	var made struct{ Metadata struct{ Name string } }
	assert.NilError(k.c.t, json.Unmarshal([]byte(answer), &made))
	eventually(k.c.t, podLimit, "a decision on the certificate request for "+node, func() error {
		got := k.c.control().kubectl("get", "csr", made.Metadata.Name, "-o", "jsonpath={range .status.conditions[*]}{.type}: {.message}{end}")
		if got == "" {
			return errors.New("none yet")
		}
		assert.Assert(k.c.t, cmp.Contains(got, "Denied: "))
		assert.Assert(k.c.t, cmp.Contains(got, why))
		return nil
	})
}

// confined checks that the credentials of a worker cannot change other Nodes, cannot get certificates for other names, and cannot read
// Secrets that its pods do not use.
func (c *joined) confined(i, other int) {
	c.t.Helper()
	k, victim := c.thief(i), objectName(other)
	for _, name := range []string{victim, objectName(0)} {
		k.forbidden(http.MethodPatch, "/api/v1/nodes/"+name+"/status", mergePatch,
			`{"status": {"addresses": [{"type": "InternalIP", "address": "`+string(c.hosts[i].ip)+`"}]}}`, "is not allowed to modify node")
		k.forbidden(http.MethodPatch, "/api/v1/nodes/"+name, mergePatch, `{"metadata": {"annotations": {"x": "y"}}}`, "is not allowed to modify node")
		k.forbidden(http.MethodDelete, "/api/v1/nodes/"+name, jsonBody, "", "is not allowed to modify node")
		k.forbidden(http.MethodPatch, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"+name, mergePatch,
			`{"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}}`, "can only access node lease with the same name")
		k.refusedCertificate(name, "kube-apiserver-client-kubelet", "client auth", "can only create a node CSR with CN=system:node:"+k.node)
	}
	k.forbidden(http.MethodPatch, "/api/v1/nodes/"+k.node, mergePatch, `{"metadata": {"finalizers": ["example.com/x"]}}`, "cannot change the finalizers")
	k.forbidden(http.MethodPost, "/api/v1/nodes", jsonBody, `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "`+k.node+`"}}`,
		"cannot create its Node object")

	c.control().kubectl("create", "secret", "generic", "victim", "--from-literal=key=value")
	for _, path := range []string{"/api/v1/secrets", "/api/v1/namespaces/kube-system/secrets", "/api/v1/namespaces/default/secrets/victim"} {
		k.forbidden(http.MethodGet, path, "", "", "secret")
	}
	k.forbidden(http.MethodPost, "/api/v1/namespaces/default/pods", jsonBody, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata":
		{"name": "thief", "annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {"nodeName": %q, "containers":
		[{"name": "c", "image": "x", "envFrom": [{"secretRef": {"name": "victim"}}]}]}}`, k.node), "may not reference secrets")

	for _, name := range []string{"kubernetes", "webhook.default.svc", victim} {
		k.refusedCertificate(k.node, "kubelet-serving", "server auth", "does not belong to the node", name)
	}
	k.refusedCertificate(k.node, "kubelet-serving", "server auth", "belongs to the API server", string(c.hosts[0].ip))
	k.refusedCertificate(k.node, "kubelet-serving", "server auth", "belongs to node "+victim, string(c.hosts[other].ip))

	byToken := k.with(c.invite("--reusable").token)
	for name, why := range map[string]string{
		victim: "node " + victim + " already exists", objectName(0): "is the node of the control plane",
		"x.wild.e2e.test": "is a name of the API server", "webhook.default.svc": "is a name of the cluster",
		"github.com": "create a token for this name",
	} {
		byToken.refusedCertificate(name, "kube-apiserver-client-kubelet", "client auth", why)
	}
}

// staysOut checks that a node that has left cannot come back with its certificate, which is valid for a year.
func (k *thief) staysOut() {
	k.c.t.Helper()
	k.forbidden(http.MethodPost, "/api/v1/nodes", jsonBody, `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "`+k.node+`"}}`,
		"cannot create its Node object")
	k.refusedCertificate(k.node, "kube-apiserver-client-kubelet", "client auth", "there is no Node object "+k.node)
	k.refusedCertificate(k.node, "kubelet-serving", "server auth", "there is no Node object "+k.node, k.node)
}
