package kubeapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestNewForCluster(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, true)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var who string
	f.other = func(w http.ResponseWriter, r *http.Request) {
		who = r.Header.Get("Authorization")
		w.Header().Set("Date", at.Format(http.TimeFormat))
		answer(w, 200, object{"gitVersion": "v1.37.2"})
	}
	ca := pemOf(f.Certificate())
	for name, tc := range map[string]struct {
		cl        Cluster
		who       string
		untrusted bool
	}{
		"with a token":            {Cluster{Server: f.URL, CA: ca, BearerToken: "tok"}, "Bearer tok", false},
		"anonymous, not verified": {Cluster{Server: f.URL, Insecure: true}, "", false},
		"of another authority":    {Cluster{Server: f.URL, CA: otherCA(t)}, "", true},
	} {
		who = ""
		var date time.Time
		c, err := NewForCluster(tc.cl, Options{Date: func(d time.Time) { date = d }})
		assert.NilError(t, err, name)
		v, err := c.Version(t.Context())
		c.Close()
		assert.Equal(t, Untrusted(err), tc.untrusted, name)
		if !tc.untrusted {
			assert.NilError(t, err, name)
			assert.Equal(t, v, "v1.37.2")
			assert.Assert(t, date.Equal(at), "%s: %s", name, date)
		}
		assert.Equal(t, who, tc.who, name)
	}
	for want, cl := range map[string]Cluster{
		"refusing to send credentials": {Server: f.URL, Insecure: true, BearerToken: "tok"},
		"no certificate authority":     {Server: f.URL},
		"prepare transport":            {Server: f.URL, CA: []byte("x")},
	} {
		_, err := NewForCluster(cl, Options{})
		assert.ErrorContains(t, err, want)
	}
}

// otherCA returns a certificate that has not signed the server's.
func otherCA(t *testing.T) []byte {
	t.Helper()
	ca, _ := selfSigned(t)
	return ca
}

func TestLoadCluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, key := selfSigned(t)
	for name, data := range map[string][]byte{"ca.crt": ca, "me.crt": ca, "me.key": key, "token": []byte("tok\n")} {
		assert.NilError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	load := func(cluster, user string) (Cluster, error) {
		path := filepath.Join(dir, "kubeconfig")
		assert.NilError(t, os.WriteFile(path, []byte(`{apiVersion: v1, kind: Config, current-context: c,
contexts: [{name: c, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: "https://a.example:6443"`+cluster+`}}],
users: [{name: u, user: {`+user+`}}]}`), 0o600))
		return LoadCluster(path)
	}
	const caFile = ", certificate-authority: ca.crt"
	got, err := load(caFile, "client-certificate: me.crt, client-key: me.key")
	assert.NilError(t, err)
	assert.DeepEqual(t, got, Cluster{Server: "https://a.example:6443", CA: ca, CertPEM: ca, KeyPEM: key})
	got, err = load(caFile, "tokenFile: token")
	assert.NilError(t, err)
	want := Cluster{Server: "https://a.example:6443", CA: ca, BearerToken: "tok"}
	assert.DeepEqual(t, got, want)

	// The rendered kubeconfig has the same content without other files.
	text, err := want.Kubeconfig("boot")
	assert.NilError(t, err)
	alone := filepath.Join(t.TempDir(), "kubeconfig")
	assert.NilError(t, os.WriteFile(alone, text, 0o600))
	got, err = LoadCluster(alone)
	assert.NilError(t, err)
	assert.DeepEqual(t, got, want)

	for want, in := range map[string][2]string{
		"an exec plugin (aws)":        {caFile, "exec: {command: aws, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}"},
		"an auth-provider (oidc)":     {caFile, "auth-provider: {name: oidc}"},
		"a password":                  {caFile, "username: a, password: hush"},
		"impersonation":               {caFile, "token: t, as: b"},
		"insecure-skip-tls-verify":    {", insecure-skip-tls-verify: true", "token: t"},
		"tls-server-name":             {caFile + ", tls-server-name: b", "token: t"},
		"no certificate-authority":    {"", "token: t"},
		"none.crt: no such file":      {", certificate-authority: none.crt", "token: t"},
		"none: no such file or direc": {caFile, "tokenFile: none"},
	} {
		_, err := load(in[0], in[1])
		assert.ErrorContains(t, err, "load kubeconfig "+filepath.Join(dir, "kubeconfig"))
		assert.ErrorContains(t, err, want)
	}
}

func TestParseClusterInfo(t *testing.T) {
	t.Parallel()
	got, err := ParseClusterInfo([]byte("apiVersion: v1\nkind: Config\nclusters:\n- name: ''\n  cluster: {server: 'https://a:1', certificate-authority-data: QUJD}\n"))
	assert.NilError(t, err)
	assert.DeepEqual(t, got, Cluster{Server: "https://a:1", CA: []byte("ABC")})
	for _, bad := range []string{"]", "kind: Config\napiVersion: v1\n", "apiVersion: v1\nkind: Config\nclusters: [{name: '', cluster: {server: 'https://a', certificate-authority: /etc/passwd}}]\n"} {
		_, err := ParseClusterInfo([]byte(bad))
		assert.Assert(t, err != nil, bad)
	}
}

func TestReadConfigMapAndSecret(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, false)
	f.other = func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/namespaces/kube-public/configmaps/c":
			answer(w, 200, object{"data": object{"a": "1"}})
		case "/api/v1/namespaces/kube-system/secrets/s":
			answer(w, 200, object{"data": object{"token": "dG9r"}})
		case "/api/v1/namespaces/kube-system/secrets/empty":
			answer(w, 200, object{})
		case "/api/v1/namespaces/kube-system/secrets/shut":
			answer(w, 403, status(403, "Forbidden", "not yours"))
		default:
			answer(w, 404, status(404, "NotFound", "none"))
		}
	}
	c := f.client(t)
	cm, err := c.ConfigMap(t.Context(), "kube-public", "c")
	assert.NilError(t, err)
	assert.DeepEqual(t, cm, map[string]string{"a": "1"})
	cm, err = c.ConfigMap(t.Context(), "kube-public", "none")
	assert.NilError(t, err)
	assert.Assert(t, cm == nil)
	s, err := c.Secret(t.Context(), "kube-system", "s")
	assert.NilError(t, err)
	assert.DeepEqual(t, s, map[string][]byte{"token": []byte("tok")})
	s, err = c.Secret(t.Context(), "kube-system", "empty")
	assert.NilError(t, err)
	assert.Assert(t, s != nil && len(s) == 0)
	s, err = c.Secret(t.Context(), "kube-system", "none")
	assert.NilError(t, err)
	assert.Assert(t, s == nil)
	_, err = c.Secret(t.Context(), "kube-system", "shut")
	assert.Assert(t, apierrors.IsForbidden(err))
	assert.ErrorContains(t, err, "read secrets kube-system/shut: ")
}

func TestNodeOfWorker(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, false)
	var calls []string
	f.other = func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type"))
		body := bodyOf(r)
		switch {
		case r.Method == http.MethodPost && len(calls) > 1:
			answer(w, 409, status(409, "AlreadyExists", "there"))
		case r.Method == http.MethodPost:
			assert.Check(t, is.Contains(body, `"kind":"Node"`))
			answer(w, 201, node("me", "False"))
		case r.Method == http.MethodPatch:
			calls = append(calls, body)
			answer(w, 200, object{})
		case r.URL.Path == "/api/v1/nodes/me":
			answer(w, 200, node("me", "True"))
		default:
			answer(w, 404, status(404, "NotFound", "none"))
		}
	}
	c := f.client(t)
	mine := &corev1.Node{}
	mine.Name = "me"
	for _, want := range []bool{true, false} {
		created, err := c.EnsureNode(t.Context(), mine)
		assert.NilError(t, err)
		assert.Equal(t, created, want)
	}
	assert.Equal(t, mine.Kind, "", "the caller's object is not changed")
	n, err := c.Node(t.Context(), "me")
	assert.NilError(t, err)
	assert.Equal(t, string(n.UID), "u-me")
	n, err = c.Node(t.Context(), "none")
	assert.NilError(t, err)
	assert.Assert(t, n == nil)
	assert.NilError(t, c.DeleteNode(t.Context(), "none"))
	calls = nil
	assert.NilError(t, c.SetNodeAddresses(t.Context(), "me", []corev1.NodeAddress{{Type: "InternalIP", Address: "192.0.2.1"}}))
	assert.NilError(t, c.SetNodeAddresses(t.Context(), "me", nil))
	assert.DeepEqual(t, calls, []string{
		"PATCH /api/v1/nodes/me/status application/merge-patch+json", `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`,
		"PATCH /api/v1/nodes/me/status application/merge-patch+json", `{"status":{"addresses":[]}}`,
	})
}

// selfSigned creates a certificate and its key.
func selfSigned(t *testing.T) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NilError(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.Public(), k)
	assert.NilError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	assert.NilError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}
