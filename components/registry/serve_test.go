package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gotest.tools/v3/assert"
)

func TestParseOptions(t *testing.T) {
	t.Parallel()
	o, err := parseOptions([]string{"--dir=/d", "--listen=127.0.0.1:5000", "--listen=10.0.2.100:5000", "--allow=10.0.2.0/24"}, io.Discard)
	assert.NilError(t, err)
	assert.Equal(t, len(o.listen), 2)
	assert.Equal(t, o.allow[0], netip.MustParsePrefix("10.0.2.0/24"))
	_, err = parseOptions([]string{"--dir=d", "--log-level=loud"}, io.Discard)
	for _, want := range []string{"--dir:", "--listen:", "--log-level:"} {
		assert.ErrorContains(t, err, want)
	}
	for _, args := range []string{"x", "--listen=5000", "--allow=x"} {
		_, err = parseOptions([]string{args}, io.Discard)
		assert.Assert(t, err != nil, args)
	}
}

// start serves a registry until the test ends and returns its URL. stop ends it before.
func start(t *testing.T, dir string, allow ...netip.Prefix) (url string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	assert.NilError(t, err)
	address := netip.MustParseAddrPort(l.Addr().String())
	assert.NilError(t, l.Close())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- serve(ctx, options{dir: dir, listen: []netip.AddrPort{address}, allow: allow, level: "error"})
	}()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			assert.Check(t, <-done)
		}
	}
	t.Cleanup(stop)
	url = "http://" + address.String() + "/v2/"
	for {
		resp, err := http.Get(url)
		if err == nil {
			assert.NilError(t, resp.Body.Close())
			return url, stop
		}
		assert.Assert(t, errors.Is(err, syscall.ECONNREFUSED), "%v", err)
	}
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

func do(t *testing.T, method, url, contentType string, body []byte) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	assert.NilError(t, err)
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Accept", manifestType)
	resp, err := http.DefaultClient.Do(r)
	assert.NilError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// pushBlob stores a blob and returns its digest.
func pushBlob(t *testing.T, url string, data []byte) string {
	t.Helper()
	resp := do(t, http.MethodPost, url+"app/blobs/uploads/", "", nil)
	assert.Equal(t, resp.StatusCode, http.StatusAccepted)
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(data))
	resp = do(t, http.MethodPut, resp.Header.Get("Location")+"&digest="+digest, "application/octet-stream", data)
	assert.Equal(t, resp.StatusCode, http.StatusCreated)
	return digest
}

// TestImagesSurvive pushes an image, restarts the registry, deletes the image and collects
// the garbage.
func TestImagesSurvive(t *testing.T) {
	dir := t.TempDir()
	url, stop := start(t, dir)
	config := []byte("{}")
	digest := pushBlob(t, url, config)
	manifest := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":2},"layers":[]}`,
		manifestType, digest)
	resp := do(t, http.MethodPut, url+"app/manifests/1", manifestType, []byte(manifest))
	assert.Equal(t, resp.StatusCode, http.StatusCreated)
	stop()

	url, stop = start(t, dir)
	resp = do(t, http.MethodGet, url+"app/manifests/1", "", nil)
	assert.Equal(t, resp.StatusCode, http.StatusOK)
	assert.Equal(t, resp.Header.Get("Content-Type"), manifestType)
	deleted := do(t, http.MethodDelete, url+"app/manifests/"+resp.Header.Get("Docker-Content-Digest"), "", nil)
	assert.Equal(t, deleted.StatusCode, http.StatusAccepted)
	stop()

	blob := filepath.Join(dir, "docker/registry/v2/blobs/sha256", digest[7:9], digest[7:], "data")
	_, err := os.Stat(blob)
	assert.NilError(t, err)
	assert.NilError(t, collectGarbage(t.Context(), options{dir: dir, level: "error"}))
	_, err = os.Stat(blob)
	assert.Assert(t, os.IsNotExist(err))
}

// TestFilter checks that clients outside of the allowed networks get no answer.
func TestFilter(t *testing.T) {
	t.Parallel()
	f := &filter{allow: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}}
	for client, want := range map[string]bool{"127.0.0.1": true, "::1": true, "10.0.2.100": true, "10.42.0.7": false, "192.0.2.1": false} {
		assert.Equal(t, f.allows(netip.MustParseAddr(client)), want, client)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	assert.NilError(t, err)
	pods := &filter{Listener: &fromPods{Listener: l}}
	go func() {
		for {
			c, err := pods.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "accepted")
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { assert.Check(t, l.Close()) })
	c, err := net.Dial("tcp4", l.Addr().String())
	assert.NilError(t, err)
	got, err := io.ReadAll(c)
	assert.Assert(t, err == nil || strings.Contains(err.Error(), "reset"), "%v", err)
	assert.Equal(t, string(got), "")
}

// fromPods is a listener whose clients have the address of a pod.
type fromPods struct{ net.Listener }

func (l *fromPods) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return podConn{c}, err
}

type podConn struct{ net.Conn }

func (podConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 42, 0, 7), Port: 1} }
func (c podConn) Close() error {
	if c.Conn == nil {
		return nil
	}
	return c.Conn.Close()
}
