package membership

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	tokenapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestJoinByToken(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	in := c.input()
	in.Config.Join.CACertHashes = []string{strings.ToUpper(in.Config.Join.CACertHashes[0])}
	in.Token += "\n"
	rec, logs, err := c.prepare(in)
	assert.NilError(t, err)
	want := &Record{Server: c.URL, NodeName: nodeName, Cluster: &Cluster{
		PodCIDR: "10.50.0.0/16", ServiceCIDR: "10.51.0.0/16", DNSAddress: "10.51.0.10", Domain: "a.example", Backend: "vxlan", VXLANPort: 8472,
	}}
	assert.DeepEqual(t, rec, want)
	assert.Assert(t, !strings.Contains(logs, "level=warning"), logs)
	loaded, err := Load(in.Data)
	assert.NilError(t, err)
	assert.DeepEqual(t, loaded, want)

	got := tree(t, in.Data.Dir)
	assert.Equal(t, len(got), 3, "%v", got)
	assert.Equal(t, got["kubernetes/pki/ca.crt"], string(c.ca.pem))
	cl, err := kubeapi.LoadCluster(in.Data.BootstrapKubeconfig())
	assert.NilError(t, err)
	assert.DeepEqual(t, cl, kubeapi.Cluster{Server: c.URL, CA: c.ca.pem, BearerToken: tokenID + "." + tokenSecret})
	for path, mode := range map[string]os.FileMode{
		in.Data.ClusterCA(): 0o644, in.Data.BootstrapKubeconfig(): 0o600, in.Data.JoinRecord(): 0o600, in.Data.PKI(): 0o700, in.Data.Dir: 0o700,
	} {
		info, err := os.Stat(path)
		assert.NilError(t, err)
		assert.Equal(t, info.Mode().Perm(), mode, path)
	}
}

func TestJoinByTokenWithWarnings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		set     func(*fakeCluster, *Input)
		logs    string
		foreign bool
	}{
		"a foreign cluster": {func(c *fakeCluster, _ *Input) { c.config = nil }, "", true},
		"a foreign cluster without access": {func(c *fakeCluster, _ *Input) {
			c.refuse["/api/v1/namespaces/kube-public/configmaps/rootlessnode"] = 403
		}, "", true},
		"no pin":             {func(c *fakeCluster, in *Input) { in.Config.Join.CACertHashes = nil }, "no --ca-cert-hash", false},
		"three minors older": {func(c *fakeCluster, in *Input) { in.KubeletVersion = "v1.34.9" }, "", false},
		"no version":         {func(c *fakeCluster, in *Input) { in.KubeletVersion = "" }, "", false},
		"a clock ahead":      {func(c *fakeCluster, _ *Input) { c.late = -time.Hour }, "the clock of this host is 1h0m", false},
		"a server that is just starting": {func(c *fakeCluster, _ *Input) {
			c.patience = time.Minute
			c.before = func(n int, w http.ResponseWriter, _ *http.Request) bool {
				if n < 4 {
					reply(w, 503, nil)
				}
				return n < 4
			}
		}, "is not responding yet", false},
		"files of an interrupted write": {func(c *fakeCluster, in *Input) {
			assert.NilError(t, os.MkdirAll(in.Data.PKI(), 0o700))
			assert.NilError(t, os.WriteFile(in.Data.ClusterCA(), []byte("old"), 0o644))
		}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			in := c.input()
			tc.set(c, &in)
			rec, logs, err := c.prepare(in)
			assert.NilError(t, err)
			assert.Equal(t, rec.Cluster == nil, tc.foreign)
			assert.Assert(t, is.Contains(logs, tc.logs))
			assert.Equal(t, len(tree(t, in.Data.Dir)), 3)
		})
	}
}

func TestJoinByTokenFaults(t *testing.T) {
	t.Parallel()
	const create = "create a bootstrap token"
	for name, tc := range map[string]struct {
		set   func(*fakeCluster, *Input)
		class error // errdefs.ErrPreflight if nil
		texts []string
		hints []string
		// shown reports whether the token was sent to the server.
		shown bool
	}{
		"malformed token": {
			set:   func(_ *fakeCluster, in *Input) { in.Token = "ABC." + tokenSecret },
			class: errdefs.ErrConfig, texts: []string{"malformed bootstrap token: must be ID.SECRET"}, hints: []string{create},
		},
		"malformed server": {
			set: func(_ *fakeCluster, in *Input) {
				in.Config.Join.Server = "https://"
				in.Token = "x"
			},
			class: errdefs.ErrConfig, texts: []string{"malformed"},
		},
		"unreachable": {
			set:   func(c *fakeCluster, _ *Input) { c.Close() },
			texts: []string{"the API server at https://127.0.0.1:", "is unreachable after ", "connection refused"},
			hints: []string{"curl -k https://127.0.0.1:", "api.bindAddress"},
		},
		"no TLS": {
			set: func(c *fakeCluster, in *Input) {
				plain := httptest.NewServer(http.NotFoundHandler())
				c.t.Cleanup(plain.Close)
				in.Config.Join.Server = strings.Replace(plain.URL, "http:", "https:", 1)
			},
			texts: []string{"is not an API server"}, hints: []string{"check the port"},
		},
		"no cluster-info": {
			set:   func(c *fakeCluster, _ *Input) { c.info = nil },
			texts: []string{"has no ConfigMap kube-public/cluster-info"}, hints: []string{"join.bootstrapKubeconfig=FILE"},
		},
		"cluster-info is not public": {
			set:   func(c *fakeCluster, _ *Input) { c.refuse["anonymous"] = 401 },
			texts: []string{"does not allow anonymous reads of the ConfigMap kube-public/cluster-info"}, hints: []string{"join.bootstrapKubeconfig=FILE"},
		},
		"expired token": {
			set:   func(c *fakeCluster, _ *Input) { delete(c.info, tokenapi.JWSSignatureKeyPrefix+tokenID) },
			texts: []string{"does not know the bootstrap token abcdef: it has expired, was deleted, or belongs to another cluster"}, hints: []string{create},
		},
		"wrong secret": {
			set:   func(_ *fakeCluster, in *Input) { in.Token = tokenID + ".ffffffffffffffff" },
			texts: []string{"has a bootstrap token abcdef with a different secret"}, hints: []string{create},
		},
		"tampered cluster-info": {
			set:   func(c *fakeCluster, _ *Input) { c.info[tokenapi.KubeConfigKey] += "\n" },
			texts: []string{"with a different secret: the token is mistyped, or there may be a man in the middle"}, hints: []string{create},
		},
		"signed nonsense": {
			set: func(c *fakeCluster, _ *Input) {
				signature, _ := jws.ComputeDetachedSignature("apiVersion: v1\nkind: Config\n", tokenID, tokenSecret)
				c.info = map[string]string{tokenapi.KubeConfigKey: "apiVersion: v1\nkind: Config\n", tokenapi.JWSSignatureKeyPrefix + tokenID: signature}
			},
			texts: []string{"read the ConfigMap kube-public/cluster-info", "must contain exactly one cluster, found 0"}, hints: []string{"join.bootstrapKubeconfig=FILE"},
		},
		"wrong pin": {
			set: func(_ *fakeCluster, in *Input) {
				in.Config.Join.CACertHashes = []string{"sha256:" + strings.Repeat("ab", 32)}
			},
			texts: []string{"does not match --ca-cert-hash: found sha256:", "expected sha256:" + strings.Repeat("ab", 32)}, hints: []string{create},
		},
		"one pin of two": {
			set: func(c *fakeCluster, _ *Input) {
				c.ca.pem = append(c.ca.pem, newAuthority(c.t).pem...)
				c.sign()
			},
			texts: []string{"does not match --ca-cert-hash"}, hints: []string{create},
		},
		"another's certificate": {
			set:   func(c *fakeCluster, _ *Input) { c.serve(newAuthority(c.t), x509.Certificate{}) },
			texts: []string{"is not signed by the cluster's CA", "unknown authority"}, hints: []string{"proxy"},
		},
		"certificate for other names": {
			set:   func(c *fakeCluster, _ *Input) { c.serve(c.ca, x509.Certificate{DNSNames: []string{"a.example"}}) },
			texts: []string{"has a certificate that does not contain this name", "127.0.0.1"}, hints: []string{"api.extraSANs"},
		},
		"expired certificate": {
			set: func(c *fakeCluster, _ *Input) {
				c.serve(c.ca, x509.Certificate{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
			},
			texts: []string{"is not valid at the time of this host"}, hints: []string{"has renewed its certificate"},
		},
		"certificate of another time": {
			set: func(c *fakeCluster, _ *Input) {
				c.serve(c.ca, x509.Certificate{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
				c.late = -90 * time.Minute
			},
			texts: []string{"is not valid at the time of this host"}, hints: []string{"the clock of this host is 1h30m", "ahead of that of https://", "timedatectl"},
		},
		"cluster-info changes": {
			set: func(c *fakeCluster, _ *Input) {
				c.before = func(n int, w http.ResponseWriter, _ *http.Request) bool {
					if n == 2 {
						reply(w, 200, map[string]any{"data": map[string]string{"kubeconfig": "other"}})
					}
					return n == 2
				}
			},
			texts: []string{"returned different cluster information after its certificate was verified"}, hints: []string{"try again"},
		},
		"token refused": {
			set: func(c *fakeCluster, _ *Input) { c.refuse["token"] = 401 }, shown: true,
			texts: []string{"rejects the bootstrap token abcdef: it has expired, was deleted"}, hints: []string{create},
		},
		"server two minors older": {
			set: func(c *fakeCluster, _ *Input) { c.version = "v1.35.4" }, shown: true,
			texts: []string{"the kubelet of this node, v1.37.2, is newer than the API server at https://", ", v1.35.4: a kubelet may be up to 3 minor versions older and must not be newer"},
			hints: []string{"Kubernetes v1.32 to v1.35"},
		},
		"server four minors newer": {
			set: func(c *fakeCluster, _ *Input) { c.version = "v1.41.0-alpha.1+x" }, shown: true,
			texts: []string{"v1.37.2, is 4 minor versions older than the API server"}, hints: []string{"Kubernetes v1.38 to v1.41"},
		},
		"another major": {
			set: func(c *fakeCluster, _ *Input) { c.version = "v2.37.0" }, shown: true,
			texts: []string{"has a different major version"}, hints: []string{"componentsDir"},
		},
		"malformed version": {
			set: func(c *fakeCluster, _ *Input) { c.version = "devel" }, shown: true,
			texts: []string{`read the version "devel" of the API server`}, hints: []string{"curl"},
		},
		"a clock behind": {
			set: func(c *fakeCluster, _ *Input) { c.late = time.Hour }, shown: true,
			texts: []string{"the clock of this host is ", " behind that of https://"}, hints: []string{"timedatectl"},
		},
		"malformed ConfigMap of the cluster": {
			set: func(c *fakeCluster, _ *Input) { c.config["vxlanPort"] = "x" }, shown: true,
			texts: []string{"read the ConfigMap kube-public/rootlessnode", `vxlanPort: invalid value "x": must be a port number`}, hints: []string{"kubectl"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			in := c.input()
			tc.set(c, &in)
			if tc.class == nil {
				tc.class = errdefs.ErrPreflight
			}
			_, _, err := c.prepare(in)
			faultIs(t, err, tc.class, tc.texts, tc.hints)
			assert.Check(t, is.Len(tree(t, in.Data.Dir), 0), "no partial files")
			c.mu.Lock()
			defer c.mu.Unlock()
			assert.Check(t, is.Equal(c.tokens > 0, tc.shown), "the token goes only to the server that was verified")
		})
	}
}

// TestServerThatHangs checks the timeouts of each attempt and of all attempts.
func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.before = func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done()
		return true
	}
	_, _, err := c.prepareWith(t.Context(), c.input(), 20*time.Millisecond)
	faultIs(t, err, errdefs.ErrPreflight, []string{"is unreachable after ", "no response within 20ms"}, []string{"curl"})
}

func TestCancel(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	c.before = func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		cancel()
		<-r.Context().Done()
		return true
	}
	_, _, err := c.prepareWith(ctx, c.input(), 10*time.Second)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, errdefs.ExitCode(err), errdefs.ExitOther)
}

// TestInterruptedWrite checks that no file is created if one cannot be renamed.
func TestInterruptedWrite(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	in := c.input()
	kept := filepath.Join(in.Data.BootstrapKubeconfig(), "kept")
	assert.NilError(t, os.MkdirAll(filepath.Dir(kept), 0o700))
	assert.NilError(t, os.WriteFile(kept, nil, 0o600))
	_, _, err := c.prepare(in)
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.ErrorContains(t, err, "store the joined cluster: ")
	assert.DeepEqual(t, tree(t, in.Data.Dir), map[string]string{"kubernetes/bootstrap.kubeconfig/kept": ""})
}

// TestDataOfAnother checks that a data dir belongs to one cluster.
func TestDataOfAnother(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		set  func(*fakeCluster, *Input)
		text string
	}{
		"a cluster of its own": {func(_ *fakeCluster, in *Input) {
			assert.NilError(t, os.RemoveAll(in.Data.Dir))
			assert.NilError(t, os.MkdirAll(in.Data.PKI(), 0o700))
			assert.NilError(t, os.WriteFile(filepath.Join(in.Data.PKI(), "ca.key"), nil, 0o600))
		}, "contains the data of a control plane"},
		"another server": {func(_ *fakeCluster, in *Input) { in.Config.Join.Server = "https://192.0.2.1:6443" },
			"contains the data of a node of the cluster at https://127.0.0.1:"},
		"another server, no token": {func(_ *fakeCluster, in *Input) { in.Config.Join.Server, in.Token = "https://192.0.2.1:6443", "" },
			"cannot be used to join https://192.0.2.1:6443"},
		"a rebuilt cluster": {func(c *fakeCluster, in *Input) {
			c.rebuild()
			c.sign()
			in.Config.Join.CACertHashes = []string{c.pin()}
		}, "it has a different CA, so it was rebuilt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			in := c.joined()
			in.Token = tokenID + "." + tokenSecret
			in.Config.Name = "two"
			tc.set(c, &in)
			before := tree(t, in.Data.Dir)
			_, _, err := c.prepare(in)
			faultIs(t, err, errdefs.ErrPreflight, []string{tc.text, in.Data.Dir}, []string{"delete the data of the node"})
			assert.DeepEqual(t, tree(t, in.Data.Dir), before)
		})
	}
}

func TestRejoin(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	in := c.joined()
	delete(c.nodes, nodeName)
	_, _, err := c.prepare(in)
	faultIs(t, err, errdefs.ErrPreflight, []string{"the Node object w1 was deleted from the cluster at " + c.URL + ": join again with a token"},
		[]string{"create a bootstrap token", "start the node join.server=" + c.URL})

	// The server need not be given again.
	in.Config.Join.Server, in.Config.Join.CACertHashes = "", nil
	in.Token = tokenID + "." + tokenSecret
	rec, _, err := c.prepare(in)
	assert.NilError(t, err)
	assert.Equal(t, rec.Server, c.URL)
	assert.Equal(t, rec.NodeUID, "")
	assert.Assert(t, exists(in.Data.BootstrapKubeconfig()))

	// The node stopped before it had a certificate: the token still exists.
	in.Token = ""
	_, _, err = c.prepare(in)
	assert.NilError(t, err)
	assert.Assert(t, exists(in.Data.BootstrapKubeconfig()))
}

func TestNothingToJoin(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	in := c.input()
	in.Token = ""
	_, _, err := c.prepare(in)
	faultIs(t, err, errdefs.ErrPreflight, []string{"has not joined " + c.URL + " yet: a bootstrap token is required"},
		[]string{"create a bootstrap token", "tokenFile=FILE", c.URL})
	in.Config.Join.Server = ""
	_, _, err = c.prepare(in)
	faultIs(t, err, errdefs.ErrConfig, []string{"there is no cluster to join"}, []string{"start the node join.server=https://HOST:6443"})
}

func TestHashes(t *testing.T) {
	t.Parallel()
	a, b := newAuthority(t), newAuthority(t)
	spki, err := x509.MarshalPKIXPublicKey(a.key.Public())
	assert.NilError(t, err)
	digest := sha256.Sum256(spki)
	all, err := Hashes([]byte(string(a.pem) + string(b.pem) + string(a.pem)))
	assert.NilError(t, err)
	assert.Equal(t, len(all), 2)
	assert.Equal(t, all[0], "sha256:"+hex.EncodeToString(digest[:]))
	for _, bad := range []string{"", "x", string(pemBlock("PRIVATE KEY", []byte("x"))), string(pemBlock("CERTIFICATE", []byte("x")))} {
		_, err := Hashes([]byte(bad))
		assert.Assert(t, err != nil, bad)
	}
	assert.Assert(t, sameAuthority([]byte(string(a.pem)+string(b.pem)), b.pem))
	assert.Assert(t, !sameAuthority(a.pem, b.pem))
}
