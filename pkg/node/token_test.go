package node

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

func TestServerHost(t *testing.T) {
	t.Parallel()
	found := func() (string, error) { return "192.0.2.7", nil }
	for _, tc := range []struct{ bind, nodeIP, want string }{
		{"192.0.2.1", "", "192.0.2.1"}, {"192.0.2.1", "192.0.2.9", "192.0.2.1"}, {"0.0.0.0", "192.0.2.9", "192.0.2.9"},
		{"0.0.0.0", "", "192.0.2.7"}, {"::", "", "192.0.2.7"}, {"2001:db8::1", "", "2001:db8::1"},
	} {
		c := config.Default()
		c.API.BindAddress, c.NodeIP = tc.bind, tc.nodeIP
		got, err := serverHost(c, found)
		assert.NilError(t, err)
		assert.Equal(t, got, tc.want, "%+v", tc)
	}
	c := config.Default()
	c.API.BindAddress = "0.0.0.0"
	_, err := serverHost(c, func() (string, error) { return "", errors.New("no route") })
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.Assert(t, is.Len(errdefs.ReportOf(err).Hints, 1))
}

func TestPublicKeyHashes(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	key, err := x509.MarshalPKIXPublicKey(s.Certificate().PublicKey)
	assert.NilError(t, err)
	sum := sha256.Sum256(key)
	want := "sha256:" + hex.EncodeToString(sum[:])
	got, err := publicKeyHashes(append(cert, cert...))
	assert.NilError(t, err)
	assert.DeepEqual(t, got, []string{want, want})
	c := config.Default()
	c.Join = config.Join{Server: "https://a.example:6443", CACertHashes: got}
	c.Complete(config.HostFacts{Hostname: "h", XDGDataHome: "/d"})
	assert.NilError(t, c.Validate(), "a node that joins takes them")
	for _, bad := range []string{"", "text", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		_, err := publicKeyHashes([]byte(bad))
		assert.Assert(t, err != nil, "%q", bad)
	}
}

func TestTokensOfNodesThatHaveNone(t *testing.T) {
	t.Parallel()
	with := func(change func(*config.NodeConfig)) *Node {
		c := config.Default()
		change(c)
		dir := t.TempDir()
		return &Node{cfg: c, data: layout.NewData(dir), rt: layout.Runtime{Dir: dir + "/run"}}
	}
	alone := with(func(*config.NodeConfig) {})
	worker := with(func(c *config.NodeConfig) { c.Join.Server = "https://a.example:6443" })
	unstarted := with(func(c *config.NodeConfig) { c.API.BindAddress = "192.0.2.1" })
	for n, want := range map[*Node]string{alone: "not for others", worker: "is a worker", unstarted: "was never started"} {
		_, err := n.CreateJoinToken(t.Context(), time.Hour, "")
		assert.ErrorContains(t, err, want)
		assert.Assert(t, is.Len(errdefs.ReportOf(err).Hints, 1))
	}
	for n, want := range map[*Node]string{alone: "was never started", worker: "is a worker"} {
		_, err := n.JoinTokens(t.Context())
		assert.ErrorContains(t, err, want)
	}
	const secret = "0123456789abcdef"
	for _, bad := range []string{"", "x", "abc123456." + secret, secret} {
		err := alone.DeleteJoinToken(t.Context(), bad)
		assert.ErrorIs(t, err, errdefs.ErrConfig)
		assert.Assert(t, !strings.Contains(err.Error(), secret))
	}
	assert.ErrorContains(t, alone.DeleteJoinToken(t.Context(), "abc123."+secret), "was never started")
}
