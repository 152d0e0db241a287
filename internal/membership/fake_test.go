package membership

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"io/fs"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	tokenapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	tokenID     = "abcdef"
	tokenSecret = "0123456789abcdef"
	nodeName    = "w1"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NilError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	assert.NilError(t, err)
	cert, err := x509.ParseCertificate(der)
	assert.NilError(t, err)
	return &authority{cert, key, pemBlock("CERTIFICATE", der)}
}

func (a *authority) issue(t *testing.T, tmpl x509.Certificate) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NilError(t, err)
	tmpl.SerialNumber = big.NewInt(time.Now().UnixNano())
	if tmpl.NotBefore.IsZero() {
		tmpl.NotBefore = time.Now().Add(-time.Hour)
	}
	if tmpl.NotAfter.IsZero() {
		tmpl.NotAfter = time.Now().Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, &tmpl, a.cert, key.Public(), a.key)
	assert.NilError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	assert.NilError(t, err)
	return pemBlock("CERTIFICATE", der), pemBlock("PRIVATE KEY", pkcs8)
}

// nodeCert issues a certificate of nodeName unless the template has another subject.
func (a *authority) nodeCert(t *testing.T, tmpl x509.Certificate) (certPEM, keyPEM []byte) {
	t.Helper()
	if tmpl.Subject.CommonName == "" {
		tmpl.Subject = pkix.Name{CommonName: nodeUserPrefix + nodeName, Organization: []string{nodeGroup}}
	}
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(t, tmpl)
}

// fakeCluster is an API server. Its fields may be changed between two runs and by the function before.
type fakeCluster struct {
	*httptest.Server
	t  *testing.T
	ca *authority

	mu      sync.Mutex
	serving *tls.Certificate
	info    map[string]string // of cluster-info; nil if there is none
	nodes   map[string]string // name to uid
	version string
	config  map[string]string // of kube-public/rootlessnode; nil if there is none
	late    time.Duration     // how far its clock is ahead
	// refuse holds answers for paths, or "anonymous", "token" and "certificate" for the kind of credentials.
	refuse map[string]int
	// before is called with the number of each request, beginning at 1. It returns true if it sent a response.
	before func(n int, w http.ResponseWriter, r *http.Request) bool
	n      int
	// patience is how long Prepare tries a server that does not respond.
	patience time.Duration
	// tokens counts the requests that carried the token.
	tokens int
}

func newCluster(t *testing.T) *fakeCluster {
	t.Helper()
	c := &fakeCluster{
		t: t, version: "v1.37.2", nodes: map[string]string{nodeName: "uid-1"}, refuse: map[string]int{}, patience: 60 * time.Millisecond,
		config: map[string]string{
			"podCIDR": "10.50.0.0/16", "serviceCIDR": "10.51.0.0/16", "dnsAddress": "10.51.0.10", "domain": "a.example", "backend": "vxlan", "vxlanPort": "8472",
		},
	}
	c.Server = httptest.NewUnstartedServer(c)
	c.Config.ErrorLog = log.New(io.Discard, "", 0)
	c.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return &tls.Config{Certificates: []tls.Certificate{*c.serving}, ClientAuth: tls.RequestClientCert}, nil
	}}
	c.rebuild()
	c.StartTLS()
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	c.sign()
	return c
}

// rebuild creates another CA for the cluster.
func (c *fakeCluster) rebuild() {
	c.ca = newAuthority(c.t)
	c.serve(c.ca, x509.Certificate{})
}

// serve makes the API server use a certificate of a.
func (c *fakeCluster) serve(a *authority, tmpl x509.Certificate) {
	if tmpl.DNSNames == nil {
		tmpl.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	certPEM, keyPEM := a.issue(c.t, tmpl)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	assert.NilError(c.t, err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving = &pair
}

// sign creates cluster-info again.
func (c *fakeCluster) sign() {
	text, err := kubeapi.Cluster{Server: c.URL, CA: c.ca.pem}.Kubeconfig("")
	assert.NilError(c.t, err)
	signature, err := jws.ComputeDetachedSignature(string(text), tokenID, tokenSecret)
	assert.NilError(c.t, err)
	c.info = map[string]string{tokenapi.KubeConfigKey: string(text), tokenapi.JWSSignatureKeyPrefix + tokenID: signature}
}

func (c *fakeCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	w.Header().Set("Date", time.Now().Add(c.late).UTC().Format(http.TimeFormat))
	who := "anonymous"
	switch token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); {
	case ok && token == tokenID+"."+tokenSecret:
		who = "token"
		c.tokens++
	case len(r.TLS.PeerCertificates) > 0:
		who = "certificate"
		if r.TLS.PeerCertificates[0].CheckSignatureFrom(c.ca.cert) != nil {
			reply(w, http.StatusUnauthorized, nil)
			return
		}
	}
	if c.before != nil {
		before, n := c.before, c.n
		c.mu.Unlock()
		done := before(n, w, r)
		c.mu.Lock()
		if done {
			return
		}
	}
	for _, key := range []string{who, r.URL.Path} {
		if code := c.refuse[key]; code != 0 {
			reply(w, code, nil)
			return
		}
	}
	const configMaps = "/api/v1/namespaces/kube-public/configmaps/"
	switch {
	case r.URL.Path == configMaps+"cluster-info" && c.info != nil:
		reply(w, http.StatusOK, map[string]any{"data": c.info})
	case r.URL.Path == "/version" && who != "anonymous":
		reply(w, http.StatusOK, map[string]any{"gitVersion": c.version})
	case r.URL.Path == configMaps+"rootlessnode" && who != "anonymous" && c.config != nil:
		reply(w, http.StatusOK, map[string]any{"data": c.config})
	case who == "anonymous" && r.URL.Path != configMaps+"cluster-info":
		reply(w, http.StatusUnauthorized, nil)
	case strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") && who == "certificate":
		name := filepath.Base(r.URL.Path)
		if uid, ok := c.nodes[name]; ok {
			reply(w, http.StatusOK, map[string]any{"metadata": map[string]any{"name": name, "uid": uid}})
			return
		}
		reply(w, http.StatusNotFound, nil)
	default:
		reply(w, http.StatusNotFound, nil)
	}
}

func reply(w http.ResponseWriter, code int, body any) {
	if body == nil {
		reason := map[int]string{401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 503: "ServiceUnavailable"}[code]
		body = map[string]any{"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": reason}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func (c *fakeCluster) pin() string {
	h, err := Hashes(c.ca.pem)
	assert.NilError(c.t, err)
	return h[0]
}

// input joins c by its token and pin.
func (c *fakeCluster) input() Input {
	cfg := config.Default()
	cfg.NodeName = nodeName
	cfg.Join = config.Join{Server: c.URL, CACertHashes: []string{c.pin()}}
	return Input{
		Config: cfg, Data: layout.NewData(filepath.Join(c.t.TempDir(), "data")), Token: tokenID + "." + tokenSecret, KubeletVersion: "v1.37.2",
	}
}

// joined creates a data dir of a node that has joined c and has its certificate, and returns the input of its next start.
func (c *fakeCluster) joined() Input {
	in := c.input()
	_, _, err := c.prepare(in)
	assert.NilError(c.t, err)
	assert.NilError(c.t, os.Remove(in.Data.BootstrapKubeconfig()))
	c.certify(in.Data, x509.Certificate{})
	rec, err := Load(in.Data)
	assert.NilError(c.t, err)
	rec.NodeUID = "uid-1"
	assert.NilError(c.t, rec.Save(in.Data))
	in.Token = ""
	return in
}

// certify writes what the node role would write: the certificate and the link to it, which contains a path inside.
func (c *fakeCluster) certify(data layout.Data, tmpl x509.Certificate) {
	certPEM, keyPEM := c.ca.nodeCert(c.t, tmpl)
	assert.NilError(c.t, os.MkdirAll(data.KubeletPKI(), 0o755))
	const name = "kubelet-client-2026-01-01-00-00-00.pem"
	assert.NilError(c.t, os.WriteFile(filepath.Join(data.KubeletPKI(), name), append(certPEM, keyPEM...), 0o600))
	link := filepath.Join(data.KubeletPKI(), clientCurrent)
	assert.NilError(c.t, os.RemoveAll(link))
	assert.NilError(c.t, os.Symlink(filepath.Join(layout.InsideKubeletPKI, name), link))
}

// prepare runs Prepare with short timeouts. It checks that no text contains the secret.
func (c *fakeCluster) prepare(in Input) (*Record, string, error) {
	return c.prepareWith(c.t.Context(), in, 10*time.Second)
}

func (c *fakeCluster) prepareWith(ctx context.Context, in Input, try time.Duration) (*Record, string, error) {
	var out bytes.Buffer
	logger := logrus.New()
	logger.SetOutput(&out)
	logger.SetLevel(logrus.DebugLevel)
	in.Log = logger
	j := newJoiner(in)
	j.try, j.total, j.pause = try, c.patience, time.Millisecond
	rec, err := j.prepare(ctx)
	if err != nil {
		assert.Check(c.t, rec == nil)
		report, jerr := json.Marshal(errdefs.ReportOf(err))
		assert.NilError(c.t, jerr)
		assert.Check(c.t, !strings.Contains(string(report), tokenSecret), "%s", report)
	}
	assert.Check(c.t, !strings.Contains(out.String(), tokenSecret), "%s", out.String())
	return rec, out.String(), err
}

// faultIs checks an error's class, text and hints.
func faultIs(t *testing.T, err, class error, texts, hints []string) {
	t.Helper()
	assert.Assert(t, err != nil, "no error")
	assert.Check(t, is.ErrorIs(err, class))
	for _, text := range texts {
		assert.Check(t, is.ErrorContains(err, text))
	}
	given := strings.Join(errdefs.ReportOf(err).Hints, "\n")
	assert.Check(t, given != "", "no hint with: %v", err)
	for _, hint := range hints {
		assert.Check(t, is.Contains(given, hint))
	}
}

// tree lists the files below dir with their contents.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if d.Type()&fs.ModeSymlink != 0 {
			all[rel], err = os.Readlink(path)
			return err
		}
		text, err := os.ReadFile(path)
		all[rel] = string(text)
		return err
	})
	if !os.IsNotExist(err) {
		assert.NilError(t, err)
	}
	return all
}
