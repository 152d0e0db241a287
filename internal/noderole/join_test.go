package noderole

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/resources"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/membership"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// stubAPI is an API server whose responses come from answer. Calls of answer do not overlap.
type stubAPI struct {
	mu       sync.Mutex
	requests []string // method, path and body
	answer   func(r *http.Request) (code int, body any)
}

func (s *stubAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "" {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // a watch without events
		<-r.Context().Done()
		return
	}
	body, _ := io.ReadAll(r.Body) // the test fails if the body is incomplete
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path+" "+string(body))
	r.Body = io.NopCloser(bytes.NewReader(body))
	code, answer := s.answer(r)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // the test fails if the response is incomplete
}

// start starts the API server and returns its client.
func (s *stubAPI) start(t *testing.T) clientFunc {
	t.Helper()
	server := httptest.NewTLSServer(s)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	c, err := kubeapi.NewForCluster(kubeapi.Cluster{Server: server.URL, CA: ca, BearerToken: "x"}, kubeapi.Options{})
	assert.NilError(t, err)
	t.Cleanup(func() {
		c.Close()
		server.CloseClientConnections()
		server.Close()
	})
	return func() (*kubeapi.Client, error) { return c, nil }
}

func TestApplyAddress(t *testing.T) {
	t.Parallel()
	ports := testPorts(t, hostAddress("eth0", "192.0.2.7"))
	cfg := ports.cfg
	cfg.CNI, cfg.NodeName, cfg.API.BindAddress = config.CNINone, "a", "0.0.0.0"
	ports.address.path = ports.rt.NodeAddress()
	hub := status.NewHub(status.Status{}, status.Options{})
	defer hub.Close()
	is1 := func(ip string) { assert.NilError(t, layout.WriteJSON(ports.address.path, netip.MustParseAddr(ip))) }
	is1("192.0.2.7")
	assert.NilError(t, ports.address.read())
	var forwards []string
	stop, err := ports.run(func(portfwd.Config) error { return nil }, func(c portfwd.Config) {
		for _, s := range c.Static {
			forwards = append(forwards, fmt.Sprint(s.Name, " ", s.HostIP, ":", s.HostPort))
		}
	}, nil)
	assert.NilError(t, err)
	defer stop()
	away := true
	api := &stubAPI{answer: func(*http.Request) (int, any) {
		if away {
			return http.StatusForbidden, map[string]any{"kind": "Status", "code": 403, "reason": "Forbidden"}
		}
		return http.StatusOK, map[string]any{}
	}}
	var warnings []string
	f := &addressFollower{
		cfg: cfg, address: ports.address, log: ports.log, hub: hub, warn: func(texts ...string) { warnings = append(warnings, texts...) },
		node:    &nodeObject{env: component.Env{Config: cfg}, client: api.start(t), address: ports.address},
		forward: ports.update, published: ports.address.current(), warned: ports.address.current(),
	}

	assert.NilError(t, f.apply(t.Context()))
	assert.Equal(t, len(api.requests), 0, "no change")
	is1("192.0.2.8")
	for range 2 {
		assert.ErrorContains(t, f.apply(t.Context()), "node a")
		assert.Assert(t, is.Contains(forwards, "kubelet 192.0.2.8:10250"), "the forwards are updated before the cluster responds")
	}
	assert.Equal(t, len(warnings), 1, "reported once")
	assert.Equal(t, hub.Snapshot().Network.NodeAddress, "192.0.2.8")
	away = false
	api.requests, forwards = nil, nil
	is1("192.0.2.7") // the old address again; the cluster's state is unknown after the failure
	assert.NilError(t, f.apply(t.Context()))
	assert.DeepEqual(t, api.requests, []string{
		`PATCH /api/v1/nodes/a/status {"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.7"},{"type":"Hostname","address":"a"}]}}`,
		`PATCH /api/v1/nodes/a {"metadata":{"annotations":{"flannel.alpha.coreos.com/public-ip-overwrite":"192.0.2.7"}}}`,
	})
	assert.Assert(t, is.Contains(forwards, "kubelet 192.0.2.7:10250"))
	assert.NilError(t, f.apply(t.Context()))
	assert.Equal(t, len(api.requests), 2, "reported once")
}

// selfSigned returns a self-signed certificate and its key in one PEM text.
func selfSigned(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NilError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	assert.NilError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	assert.NilError(t, err)
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})...)
}

func TestStoreCertificate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pki")
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	current := filepath.Join(dir, "kubelet-client-current.pem")
	first, second := selfSigned(t), selfSigned(t)
	assert.NilError(t, storeCertificate(dir, first, now))
	assert.NilError(t, os.Symlink("nowhere", current+".new"), "left by an interrupted run")
	assert.NilError(t, storeCertificate(dir, second, now.Add(time.Second)))
	target, err := os.Readlink(current)
	assert.NilError(t, err)
	assert.Equal(t, target, filepath.Join(dir, "kubelet-client-2026-03-04-05-06-08.pem"))
	_, err = tls.LoadX509KeyPair(current, current)
	assert.NilError(t, err)
	for path, mode := range map[string]os.FileMode{dir: 0o700, target: 0o600} {
		st, err := os.Stat(path)
		assert.NilError(t, err)
		assert.Equal(t, st.Mode().Perm(), mode, path)
	}

	certificate, _, _ := strings.Cut(string(first), "-----BEGIN EC")
	_, key, _ := strings.Cut(string(second), "-----END CERTIFICATE-----\n")
	assert.ErrorContains(t, storeCertificate(dir, []byte(certificate+key), now), "check the issued certificate")
	after, err := os.Readlink(current)
	assert.NilError(t, err)
	assert.Equal(t, after, target, "a certificate for another key must not be stored")
}

// TestClusterFactsAreReadBack checks that a worker can parse the facts that a first node publishes.
func TestClusterFactsAreReadBack(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Cluster.PodCIDR, cfg.Cluster.ServiceCIDR, cfg.Cluster.Domain = "10.142.0.0/16", "10.143.0.0/16", "example.test"
	cfg.Flannel.Backend, cfg.Flannel.VXLANPort = "wireguard", 4789
	cfg.Complete(config.HostFacts{Hostname: "host"})
	text, err := resources.ClusterFacts(component.Env{Config: cfg})
	assert.NilError(t, err)
	var object struct {
		Data map[string]string `json:"data"`
	}
	assert.NilError(t, yaml.Unmarshal(text, &object))
	got, err := membership.ParseCluster(object.Data)
	assert.NilError(t, err)
	assert.DeepEqual(t, *got, membership.Cluster{
		PodCIDR: "10.142.0.0/16", ServiceCIDR: "10.143.0.0/16", DNSAddress: "10.143.0.10", Domain: "example.test", Backend: "wireguard", VXLANPort: 4789,
	})
}

// TestApproveAgain checks that a request that could not be decided is retried, and that other requests are decided in
// the meantime.
func TestApproveAgain(t *testing.T) {
	t.Parallel()
	csr := func(name string) map[string]any {
		return map[string]any{"metadata": map[string]any{"name": name, "uid": name}, "spec": map[string]any{
			"request": csrOf(t, nil), "signerName": kubeapi.SignerKubeletClient, "username": "system:bootstrap:abcdef",
			"groups": []string{kubeapi.BootstrapGroup}, "usages": []string{"client auth"},
		}}
	}
	all := []any{csr("stuck"), csr("fine")}
	const path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	api := &stubAPI{answer: func(r *http.Request) (int, any) {
		switch {
		case r.URL.Path == path:
			return http.StatusOK, map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": all}
		case strings.HasSuffix(r.URL.Path, "/stuck/approval"):
			return http.StatusConflict, map[string]any{"kind": "Status", "code": 409, "reason": "Conflict", "message": "changed"}
		case strings.HasPrefix(r.URL.Path, path):
			return http.StatusOK, csr(strings.Split(strings.TrimPrefix(r.URL.Path, path+"/"), "/")[0])
		}
		return http.StatusOK, map[string]any{"items": []any{}}
	}}
	a := testApprover(api.start(t))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := a.Run(ctx, func() {})
	assert.ErrorContains(t, err, "decide on certificate request stuck")
	assert.NilError(t, ctx.Err(), "the unit ends so that it restarts")
	approved := func(name string) bool {
		return slices.ContainsFunc(api.requests, func(s string) bool {
			return strings.HasPrefix(s, "PUT "+path+"/"+name+"/approval") && strings.Contains(s, "RootlessNodeApproved")
		})
	}
	assert.Assert(t, approved("stuck") && approved("fine"), "%v", api.requests)
}
