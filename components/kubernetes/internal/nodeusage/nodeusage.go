// Package nodeusage completes the metrics that metrics-server collects from the kubelet of its own node. It does not
// import Kubernetes, so that its test does not have to link it.
package nodeusage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// Source has the resource usage of one node. A kubelet reports 0 bytes of memory if the memory controller is missing, and
// metrics-server drops containers and nodes without memory, with their CPU time.
//
// The socket serves the same metrics, with all values. They are appended to the kubelet's response, because
// metrics-server uses the last value of a metric.
type Source struct {
	// Node is the name of the node. Socket is the path of the socket. Both are empty if there is no source.
	Node, Socket string
}

// Validate returns an error if only one of the fields is set.
func (s Source) Validate() error {
	if (s.Node == "") != (s.Socket == "") {
		return errors.New("--usage-node and --usage-socket must be set together")
	}
	return nil
}

// Complete returns a transport that completes the responses of the node's kubelet. If that fails, it calls report and
// returns the kubelet's response.
func (s Source) Complete(kubelets http.RoundTripper, report func(error)) http.RoundTripper {
	local := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", s.Socket)
		},
	}
	return transport{kubelets: kubelets, local: local, user: "system:node:" + s.Node, report: report}
}

type transport struct {
	kubelets, local http.RoundTripper
	user            string // of the node's kubelet, in its certificate
	report          func(error)
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.kubelets.RoundTrip(r)
	if err != nil || response.StatusCode != http.StatusOK || !t.isNode(response) {
		return response, err
	}
	more, err := t.usage(r.Context())
	if err != nil {
		t.report(fmt.Errorf("read the usage of the node: %w", err))
		return response, nil
	}
	response.ContentLength = -1
	response.Body = appended{io.MultiReader(response.Body, more), response.Body, more}
	return response, nil
}

// isNode reports whether the response is from the node's kubelet. Its certificate has been verified.
func (t transport) isNode(r *http.Response) bool {
	return r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && r.TLS.PeerCertificates[0].Subject.CommonName == t.user
}

func (t transport) usage(ctx context.Context) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node/metrics/resource", nil)
	if err != nil {
		return nil, err
	}
	response, err := t.local.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("status %s", response.Status), response.Body.Close())
	}
	return response.Body, nil
}

// appended is a body with another one after it.
type appended struct {
	io.Reader
	first, second io.Closer
}

func (a appended) Close() error { return errors.Join(a.first.Close(), a.second.Close()) }
