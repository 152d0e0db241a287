package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// oldPort is the port at which a host serves the API as an old release, two minor versions behind the tests' own.
const oldPort = 7443

var minorText = regexp.MustCompile(`^v1\.(\d+)\.`)

// fault is a command line that must fail, with the expected exit codes and message.
type fault struct {
	name, line string
	codes      []int
	says       string // a regular expression
}

// faults checks that each fault is reported as one clear error with a hint and its exit code, that no process is left, and that no
// secret is printed.
func (c *joined) faults(i int, v invitation) {
	c.t.Helper()
	expired := c.invite("--ttl", "1s")
	c.waitExpired(expired)
	id, _, _ := strings.Cut(v.token, ".")
	old, version := c.serveOld()
	preflight := []int{errdefs.ExitPreflight}
	for _, f := range []fault{
		{"no token", fmt.Sprintf("rootlessnode up --join %s --ca-cert-hash %s", v.server, v.hash), []int{errdefs.ExitConfig, errdefs.ExitPreflight}, "token"},
		{"an invalid token", v.with(v.token, "nonsense"), []int{errdefs.ExitConfig}, "token"},
		{"an invalid hash", v.with(v.hash, "sha256:12"), []int{errdefs.ExitConfig}, "sha256:12"},
		{"wrong CA hash", v.with(v.hash, "sha256:"+strings.Repeat("0", 64)), preflight, "hash|pin|authority"},
		{"unknown token", v.with(v.token, "abcdef."+strings.Repeat("0", 16)), preflight, "abcdef"},
		{"known token, wrong secret", v.with(v.token, id+"."+strings.Repeat("0", 16)), preflight, "token|signature"},
		{"expired token", expired.line, preflight, "expire"},
		{"unreachable server", v.with(v.server, "https://"+hostIP(nobodysIP).port(6443)), preflight, regexp.QuoteMeta(nobodysIP)},
		{"a server two minors older", v.with(v.server, old), preflight, regexp.QuoteMeta(version)},
	} {
		c.t.Run(f.name, func(t *testing.T) { c.in(t).refused(i, f, v, expired) })
	}
}

func (c *joined) refused(i int, f fault, secrets ...invitation) {
	c.t.Helper()
	out, code := c.hosts[i].paste(podLimit, c.own(i, f.line))
	assert.Assert(c.t, slices.Contains(f.codes, code), "exit code %d, want one of %v:\n%s", code, f.codes, out)
	assert.Equal(c.t, strings.Count("\n"+out, "\nerror: "), 1, "%s", out)
	assert.Equal(c.t, strings.Contains("\n"+out, "\nhint:"), true, "no hint: %s", out)
	assert.Assert(c.t, cmp.Regexp("(?i)"+f.says, out))
	for _, v := range secrets {
		assert.Assert(c.t, !strings.Contains(out, v.secret()), "a secret is printed: %s", out)
	}
	noTraceIn(c.t, c.hosts[i].runtimeDir(), c.nodes[i].name)
	left, err := filepath.Glob(layout.NewData(filepath.Join(c.hosts[i].home(), ".local/share/rootlessnode/nodes", c.nodes[i].name)).BootstrapKubeconfig())
	assert.NilError(c.t, err)
	assert.Equal(c.t, len(left), 0, "a token is kept: %v", left)
}

// waitExpired waits until a token is no longer listed, or listed as expired.
func (c *joined) waitExpired(v invitation) {
	c.t.Helper()
	id, _, _ := strings.Cut(v.token, ".")
	eventually(c.t, podLimit, "the token expires", func() error {
		for _, token := range answer[[]kubeapi.BootstrapToken](c.control(), "token", "list") {
			if token.ID == id && time.Now().Before(token.Expires) {
				return fmt.Errorf("%+v", token)
			}
		}
		return nil
	})
}

// serveOld serves the API of the cluster's first node on another port of its host, with the same certificate, and reports a version two
// minor versions older than the node's.
func (c *joined) serveOld() (server, version string) {
	c.t.Helper()
	s := c.control().status()
	minor := 0
	found := minorText.FindStringSubmatch(s.Kubernetes)
	assert.Assert(c.t, len(found) == 2, "the node's version is %q", s.Kubernetes)
	_, err := fmt.Sscan(found[1], &minor)
	assert.NilError(c.t, err)
	minor -= 2
	version = fmt.Sprintf("v1.%d", minor)

	data := layout.NewData(s.DataDir)
	cert, err := tls.LoadX509KeyPair(filepath.Join(data.PKI(), apiserver.Certificate+".crt"), filepath.Join(data.PKI(), apiserver.Certificate+".key"))
	assert.NilError(c.t, err)
	ca, err := os.ReadFile(data.ClusterCA())
	assert.NilError(c.t, err)
	roots := x509.NewCertPool()
	assert.Assert(c.t, roots.AppendCertsFromPEM(ca))
	target, err := url.Parse(s.APIServer)
	assert.NilError(c.t, err)
	host := c.hosts[0]
	transport := &http.Transport{DialContext: host.dial, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = transport
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.URL.Path != "/version" {
			return nil
		}
		body := fmt.Sprintf(`{"major": "1", "minor": "%d", "gitVersion": "%s.0"}`, minor, version)
		r.StatusCode, r.ContentLength = http.StatusOK, int64(len(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Content-Length", fmt.Sprint(len(body)))
		err := r.Body.Close()
		r.Body = io.NopCloser(strings.NewReader(body))
		return err
	}
	l, err := host.listen(host.ip.port(oldPort))
	assert.NilError(c.t, err)
	web := &http.Server{Handler: proxy, ReadHeaderTimeout: podLimit}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = web.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}))
	}()
	c.t.Cleanup(func() {
		_ = web.Close()
		transport.CloseIdleConnections()
		<-done
	})
	return "https://" + host.ip.port(oldPort), version
}
