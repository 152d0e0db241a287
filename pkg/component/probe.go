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

// Probe asks a component once whether it answers. At least one of URL and Unix is set; with both the URL is asked for
// over the socket.
type Probe struct {
	// URL answers 200 when all is well.
	URL string
	// CAFile verifies the server of an https URL.
	CAFile string
	// CertFile and KeyFile are the client certificate, where the server wants one.
	CertFile, KeyFile string
	// Unix is a socket that accepts connections when all is well. Without TLS.
	Unix string
}

// Check makes one attempt and takes no longer than ctx. It leaves no connection and no goroutine behind.
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

// answerMax is how much of an unhappy answer goes into the error. The lists of failed checks that Kubernetes programs
// answer with are shorter.
const answerMax = 4 << 10

func (p Probe) checkURL(ctx context.Context) error {
	transport, err := p.transport()
	if err != nil {
		return fmt.Errorf("probe %s: %w", p.URL, err)
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	if err != nil {
		return err
	}
	// Not http.Get: redirects are not followed, and no proxy of the user's environment is asked.
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("probe %s: %w", p.URL, err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	err = errors.Join(err, resp.Body.Close())
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("probe %s: %s%s", p.URL, resp.Status, reason(string(body)))
	}
	if err != nil {
		return fmt.Errorf("probe %s: %w", p.URL, err)
	}
	return nil
}

func (p Probe) transport() (*http.Transport, error) {
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
		return nil, fmt.Errorf("%s holds no certificate", p.CAFile)
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

// reason picks the failed checks ("[-]etcd failed: …") out of an answer in the form of Kubernetes' health endpoints, and
// the first line of any other.
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

// All returns a check that makes each of checks and joins the faults.
func All(checks ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		var errs []error
		for _, check := range checks {
			errs = append(errs, check(ctx))
		}
		return errors.Join(errs...)
	}
}
