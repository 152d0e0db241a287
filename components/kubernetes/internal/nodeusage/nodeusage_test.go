package nodeusage

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// kubelet responds like the kubelet of a node.
type kubelet struct {
	node   string
	status int
	err    error
}

func (k kubelet) RoundTrip(*http.Request) (*http.Response, error) {
	if k.err != nil {
		return nil, k.err
	}
	certificate := &x509.Certificate{Subject: pkix.Name{CommonName: "system:node:" + k.node}}
	return &http.Response{
		StatusCode: k.status, Body: io.NopCloser(strings.NewReader("kubelet\n")),
		TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}},
	}, nil
}

// serve responds with a status and the path of the request at a socket, and returns the path of the socket.
func serve(t *testing.T, status int) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, r.URL.Path+"\n")
	})}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), <-done); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return socket
}

func TestComplete(t *testing.T) {
	const completed, unchanged = "kubelet\n/metrics/resource\n", "kubelet\n"
	for name, test := range map[string]struct {
		kubelet  kubelet
		usage    int
		want     string
		reported bool
	}{
		"own node":           {kubelet{node: "a", status: http.StatusOK}, http.StatusOK, completed, false},
		"other node":         {kubelet{node: "b", status: http.StatusOK}, http.StatusOK, unchanged, false},
		"kubelet refuses":    {kubelet{node: "a", status: http.StatusForbidden}, http.StatusOK, unchanged, false},
		"usage fails":        {kubelet{node: "a", status: http.StatusOK}, http.StatusInternalServerError, unchanged, true},
		"kubelet is stopped": {kubelet{node: "a", err: errors.New("connection refused")}, http.StatusOK, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://192.0.2.1:10250/metrics/resource", nil)
			if err != nil {
				t.Fatal(err)
			}
			var reported error
			s := Source{Node: "a", Socket: serve(t, test.usage)}
			response, err := s.Complete(test.kubelet, func(err error) { reported = err }).RoundTrip(r)
			if !errors.Is(err, test.kubelet.err) || (reported != nil) != test.reported {
				t.Fatalf("RoundTrip: %v, reported %v", err, reported)
			}
			if err != nil {
				return
			}
			body, err := io.ReadAll(response.Body)
			if err = errors.Join(err, response.Body.Close()); err != nil || string(body) != test.want {
				t.Errorf("body %q, %v, want %q", body, err, test.want)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	for _, s := range []Source{{Node: "a"}, {Socket: "/s"}} {
		if s.Validate() == nil {
			t.Errorf("%+v: no error", s)
		}
	}
	for _, s := range []Source{{}, {Node: "a", Socket: "/s"}} {
		if err := s.Validate(); err != nil {
			t.Error(err)
		}
	}
}
