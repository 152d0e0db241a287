package component

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

// Probe is a readiness check of a component with a single attempt. At least one of URL and Unix must be set. If both
// are set, the URL is requested over the socket.
type Probe struct {
	// URL must respond with status 200.
	URL string
	// CAFile verifies the server of an https URL.
	CAFile string
	// CertFile and KeyFile are the client certificate, if the server requires one.
	CertFile, KeyFile string
	// Unix is a socket that must accept connections, without TLS.
	Unix string
}

// Check makes one attempt, limited by ctx. It closes its connection before it returns.
func (p Probe) Check(ctx context.Context) error {
	if p.URL == "" {
		return p.checkUnix(ctx)
	}
	return p.checkURL(ctx)
}

func (p Probe) checkUnix(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", p.Unix)
	if err != nil {
		return err
	}
	return conn.Close()
}

// bodyLimit is how many bytes of the response to a failed check the error contains. The lists of failed checks of
// Kubernetes components are shorter.
const bodyLimit = 4 << 10

func (p Probe) checkURL(ctx context.Context) error {
	transport, err := p.Transport()
	if err != nil {
		return fmt.Errorf("probe %s: %w", p.URL, err)
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	if err != nil {
		return err
	}
	// Not http.Get, so that redirects are not followed and no proxy of the environment is used.
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("probe %s: %w", p.URL, err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, bodyLimit))
	err = errors.Join(err, resp.Body.Close())
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("probe %s: %s%s", p.URL, resp.Status, reason(string(body)))
	}
	if err != nil {
		return fmt.Errorf("probe %s: %w", p.URL, err)
	}
	return nil
}

// Transport returns a transport with the client certificate and the CA of the probe, which it reads now. It opens a
// connection for each request, and uses no proxy of the environment.
func (p Probe) Transport() (*http.Transport, error) {
	t := &http.Transport{DisableKeepAlives: true}
	if p.Unix != "" {
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", p.Unix)
		}
	}
	if p.CAFile == "" && p.CertFile == "" {
		return t, nil
	}
	ca, err := os.ReadFile(p.CAFile)
	if err != nil {
		return nil, err
	}
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s contains no certificate", p.CAFile)
	}
	if p.CertFile == "" {
		return t, nil
	}
	cert, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
	if err != nil {
		return nil, err
	}
	t.TLSClientConfig.Certificates = []tls.Certificate{cert}
	return t, nil
}

// reason returns the failed checks ("[-]etcd failed: …") of a Kubernetes health endpoint's response, or the first line
// of any other response.
func reason(body string) string {
	var failed []string
	for line := range strings.Lines(body) {
		if after, ok := strings.CutPrefix(strings.TrimSpace(line), "[-]"); ok {
			failed = append(failed, after)
		}
	}
	if len(failed) == 0 {
		first, _, _ := strings.Cut(strings.TrimSpace(body), "\n")
		failed = append(failed, first)
	}
	text := strings.Join(failed, "; ")
	if text == "" {
		return ""
	}
	return ": " + text
}

// All returns a check that runs all checks and joins their errors.
func All(checks ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		var errs []error
		for _, check := range checks {
			errs = append(errs, check(ctx))
		}
		return errors.Join(errs...)
	}
}
