package component

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
)

func TestProbeURL(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"ready": {func(w http.ResponseWriter, _ *http.Request) {}, ""},
		"failed checks": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "[+]ping ok\n[-]etcd failed: reason withheld\n[-]informer-sync failed: 2 not started\nreadyz check failed", http.StatusInternalServerError)
		}, "500 Internal Server Error: etcd failed: reason withheld; informer-sync failed: 2 not started"},
		"one line": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no lease in use yet\nmore", http.StatusServiceUnavailable)
		}, "503 Service Unavailable: no lease in use yet"},
		"nothing said": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }, "404 Not Found"},
		"redirect": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			http.Error(w, "nowhere", http.StatusFound)
		}, "302 Found: nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(c.handler)
			defer server.Close()
			err := Probe{URL: server.URL + "/x"}.Check(t.Context())
			if c.want == "" {
				assert.NilError(t, err)
				return
			}
			assert.Error(t, err, "probe "+server.URL+"/x: "+c.want)
		})
	}
}

func TestProbeVerifiesServer(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // failed handshakes are expected
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	ca, none := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "none.crt")
	assert.NilError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	assert.NilError(t, os.WriteFile(none, []byte("x"), 0o600))

	assert.ErrorContains(t, Probe{URL: server.URL, CAFile: ca}.Check(t.Context()), "404")
	assert.ErrorContains(t, Probe{URL: server.URL}.Check(t.Context()), "certificate")
	assert.ErrorContains(t, Probe{URL: server.URL, CAFile: none}.Check(t.Context()), "contains no certificate")
	assert.Assert(t, errors.Is(Probe{URL: server.URL, CAFile: ca + "x"}.Check(t.Context()), os.ErrNotExist))
	assert.Assert(t, errors.Is(Probe{URL: server.URL, CAFile: ca, CertFile: "/none"}.Check(t.Context()), os.ErrNotExist))
}

func TestProbeEndsWithContext(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	assert.Assert(t, errors.Is(Probe{URL: server.URL}.Check(ctx), context.Canceled))
}

func TestProbeUnix(t *testing.T) {
	t.Parallel()
	// Not t.TempDir: the path of a socket must be short.
	dir, err := os.MkdirTemp("", "probe")
	assert.NilError(t, err)
	defer func() { assert.NilError(t, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "s")
	assert.Assert(t, errors.Is(Probe{Unix: path}.Check(t.Context()), os.ErrNotExist))
	listener, err := net.Listen("unix", path)
	assert.NilError(t, err)
	assert.NilError(t, Probe{Unix: path}.Check(t.Context()))
	assert.NilError(t, listener.Close())
}

func TestAll(t *testing.T) {
	t.Parallel()
	fault := func(text string) func(context.Context) error {
		return func(context.Context) error { return errors.New(text) }
	}
	fine := func(context.Context) error { return nil }
	assert.NilError(t, All(fine, fine)(t.Context()))
	assert.Error(t, All(fault("a"), fine, fault("b"))(t.Context()), "a\nb")
}

func TestProbeURLOverSocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	assert.NilError(t, err)
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/info" {
			http.Error(w, "who?", http.StatusNotFound)
		}
	})}}
	server.Start()
	defer server.Close()
	assert.NilError(t, Probe{Unix: socket, URL: "http://crio/info"}.Check(t.Context()))
	assert.ErrorContains(t, Probe{Unix: socket, URL: "http://crio/x"}.Check(t.Context()), "404 Not Found: who?")
	assert.ErrorContains(t, Probe{Unix: socket + "x", URL: "http://crio/info"}.Check(t.Context()), "no such file")
}
