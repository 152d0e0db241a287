package membership

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestRestart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		set  func(*fakeCluster, *Input)
		logs string
		uid  string
	}{
		"as before":           {func(*fakeCluster, *Input) {}, "", "uid-1"},
		"no server named":     {func(_ *fakeCluster, in *Input) { in.Config.Join = config.Join{} }, "", "uid-1"},
		"registered since":    {func(c *fakeCluster, in *Input) { c.record(in.Data, func(r *Record) { r.NodeUID = "" }) }, "", "uid-1"},
		"another Node object": {func(c *fakeCluster, _ *Input) { c.nodes[nodeName] = "uid-2" }, "", "uid-2"},
		"never registered": {func(c *fakeCluster, in *Input) {
			c.record(in.Data, func(r *Record) { r.NodeUID = "" })
			delete(c.nodes, nodeName)
		}, "", ""},
		"control plane away":   {func(c *fakeCluster, _ *Input) { c.Close() }, "the control plane is unreachable; starting the node anyway: ", "uid-1"},
		"control plane starts": {func(c *fakeCluster, _ *Input) { c.refuse["certificate"] = 503 }, "the control plane is unreachable; starting the node anyway: ", "uid-1"},
		"a clock off":          {func(c *fakeCluster, _ *Input) { c.late = time.Hour }, "the clock of this host is ", "uid-1"},
		"join not finished": {func(c *fakeCluster, in *Input) {
			c.unfinished(in.Data)
			delete(c.nodes, nodeName)
		}, "", "uid-1"},
		"join finished except for the removal of the token": {func(c *fakeCluster, in *Input) {
			c.unfinished(in.Data)
			c.refuse["token"] = 401
		}, "", "uid-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			in := c.joined()
			tc.set(c, &in)
			rec, logs, err := c.prepare(in)
			assert.NilError(t, err)
			assert.Equal(t, rec.Server, c.URL)
			assert.Equal(t, rec.NodeUID, tc.uid)
			assert.Equal(t, rec.Cluster.Domain, "a.example")
			assert.Assert(t, is.Contains(logs, tc.logs))
			assert.Equal(t, strings.Contains(logs, "level=warning"), tc.logs != "", logs)
			kept, err := Load(in.Data)
			assert.NilError(t, err)
			assert.DeepEqual(t, kept, rec)
		})
	}
}

func (c *fakeCluster) record(data layout.Data, change func(*Record)) {
	rec, err := Load(data)
	assert.NilError(c.t, err)
	change(rec)
	assert.NilError(c.t, rec.Save(data))
}

// unfinished writes the state after a join whose node has no certificate yet.
func (c *fakeCluster) unfinished(data layout.Data) {
	text, err := kubeapi.Cluster{Server: c.URL, CA: c.ca.pem, BearerToken: tokenID + "." + tokenSecret}.Kubeconfig("bootstrap")
	assert.NilError(c.t, err)
	assert.NilError(c.t, os.WriteFile(data.BootstrapKubeconfig(), text, 0o600))
}

func TestRestartFaults(t *testing.T) {
	t.Parallel()
	const create = "create a bootstrap token"
	past := x509.Certificate{NotBefore: time.Now().Add(-3 * time.Hour), NotAfter: time.Now().Add(-2 * time.Hour)}
	future := x509.Certificate{NotBefore: time.Now().Add(time.Hour), NotAfter: time.Now().Add(2 * time.Hour)}
	for name, tc := range map[string]struct {
		set   func(*fakeCluster, *Input)
		texts []string
		hints []string
	}{
		"no certificate": {
			func(_ *fakeCluster, in *Input) { assert.Check(t, os.RemoveAll(in.Data.KubeletPKI())) },
			[]string{"the node has no certificate for the cluster at https://"}, []string{create},
		},
		"link to nothing": {
			func(_ *fakeCluster, in *Input) {
				link := filepath.Join(in.Data.KubeletPKI(), clientCurrent)
				assert.Check(t, os.Remove(link))
				assert.Check(t, os.Symlink("/var/lib/kubelet/pki/kubelet-client-gone.pem", link))
			},
			[]string{"the node has no certificate for the cluster at https://"}, []string{create},
		},
		"half a certificate": {
			func(_ *fakeCluster, in *Input) {
				assert.Check(t, os.WriteFile(filepath.Join(in.Data.KubeletPKI(), "kubelet-client-2026-01-01-00-00-00.pem"), []byte("x"), 0o600))
			},
			[]string{"the node's certificate for the cluster at https://", "is unusable"}, []string{create},
		},
		"expired certificate": {
			func(c *fakeCluster, in *Input) { c.certify(in.Data, past) },
			[]string{"the node's certificate for the cluster at https://", " expired at ", "the time of this host is"}, []string{create},
		},
		"expired certificate, control plane away": {
			func(c *fakeCluster, in *Input) {
				c.certify(in.Data, past)
				c.Close()
			},
			[]string{" expired at "}, []string{create, "Check also the clock of this host: date"},
		},
		"certificate not valid yet, because of a wrong clock": {
			func(c *fakeCluster, in *Input) {
				c.certify(in.Data, future)
				c.late = 90 * time.Minute
			},
			[]string{" is not valid before "}, []string{"the clock of this host is 1h", " behind that of https://", "timedatectl"},
		},
		"rebuilt cluster": {
			func(c *fakeCluster, _ *Input) { c.rebuild() },
			[]string{"has a certificate from a different CA than when the node joined: the cluster was rebuilt, or there may be a man in the middle"},
			[]string{"delete the data of the node", create},
		},
		"the server's certificate has expired": {
			func(c *fakeCluster, _ *Input) { c.serve(c.ca, past) },
			[]string{"is not valid at the time of this host"}, []string{"has renewed its certificate"},
		},
		"unknown certificate": {
			func(c *fakeCluster, _ *Input) { c.refuse["certificate"] = 401 },
			[]string{"rejects the certificate of node w1"}, []string{create},
		},
		"forbidden": {
			func(c *fakeCluster, _ *Input) { c.refuse["/api/v1/nodes/w1"] = 403 },
			[]string{"rejects the certificate of node w1"}, []string{create},
		},
		"deleted Node": {
			func(c *fakeCluster, _ *Input) { delete(c.nodes, nodeName) },
			[]string{"the Node object w1 was deleted from the cluster at https://", ": join again with a token"}, []string{create},
		},
		"older server": {
			func(c *fakeCluster, _ *Input) { c.version = "v1.36.0" },
			[]string{"v1.37.2, is newer than the API server"}, []string{"Kubernetes v1.33 to v1.36"},
		},
		"another name": {
			func(_ *fakeCluster, in *Input) { in.Config.NodeName = "w2" },
			[]string{"belongs to node w1 of the cluster at https://", "the config sets the node name w2"}, []string{"nodeName: w1", create},
		},
		"lost authority": {
			func(_ *fakeCluster, in *Input) { assert.Check(t, os.Remove(in.Data.ClusterCA())) },
			[]string{"the CA certificate of the cluster at https://", "is missing"}, []string{create},
		},
		"join not finished, token expired": {
			func(c *fakeCluster, in *Input) {
				c.unfinished(in.Data)
				assert.Check(t, os.RemoveAll(in.Data.KubeletPKI()))
				c.refuse["token"] = 401
			},
			[]string{"has no certificate for the cluster at https://", "its bootstrap token was rejected because it has expired or was deleted"}, []string{create},
		},
		"join not finished, older server": {
			func(c *fakeCluster, in *Input) {
				c.unfinished(in.Data)
				c.version = "v1.36.0"
			},
			[]string{"is newer than the API server"}, []string{"componentsDir"},
		},
		"broken record": {
			func(_ *fakeCluster, in *Input) {
				assert.Check(t, os.WriteFile(in.Data.JoinRecord(), []byte("{}"), 0o600))
			},
			[]string{"read the record of the joined cluster: server is not set"}, []string{"rm "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			in := c.joined()
			tc.set(c, &in)
			before := tree(t, in.Data.Dir)
			_, _, err := c.prepare(in)
			faultIs(t, err, errdefs.ErrPreflight, tc.texts, tc.hints)
			assert.DeepEqual(t, tree(t, in.Data.Dir), before)
		})
	}
}

// kubeconfig writes a kubeconfig with cl and returns its path.
func (c *fakeCluster) kubeconfig(cl kubeapi.Cluster) string {
	if cl.Server == "" {
		cl.Server = c.URL
	}
	cl.CA = c.ca.pem
	text, err := cl.Kubeconfig("u")
	assert.NilError(c.t, err)
	path := filepath.Join(c.t.TempDir(), "kubeconfig")
	assert.NilError(c.t, os.WriteFile(path, text, 0o600))
	return path
}

func (c *fakeCluster) byFile(join config.Join) Input {
	in := c.input()
	in.Token, in.Config.Join = "", join
	return in
}

func TestJoinByBootstrapKubeconfig(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	in := c.byFile(config.Join{BootstrapKubeconfig: c.kubeconfig(kubeapi.Cluster{BearerToken: tokenID + "." + tokenSecret})})
	rec, _, err := c.prepare(in)
	assert.NilError(t, err)
	assert.Equal(t, rec.Server, c.URL)
	assert.Equal(t, rec.Cluster.Domain, "a.example")
	cl, err := kubeapi.LoadCluster(in.Data.BootstrapKubeconfig())
	assert.NilError(t, err)
	assert.DeepEqual(t, cl, kubeapi.Cluster{Server: c.URL, CA: c.ca.pem, BearerToken: tokenID + "." + tokenSecret})

	// Once the node has its certificate, the kubeconfig is no longer used ...
	assert.NilError(t, os.Remove(in.Data.BootstrapKubeconfig()))
	c.certify(in.Data, x509.Certificate{})
	_, _, err = c.prepare(in)
	assert.NilError(t, err)
	assert.Assert(t, !exists(in.Data.BootstrapKubeconfig()))
	// ... until the certificate is no longer usable.
	delete(c.nodes, nodeName)
	rec, logs, err := c.prepare(in)
	assert.NilError(t, err)
	assert.Assert(t, is.Contains(logs, "joining again: the Node object w1 was deleted"))
	assert.Equal(t, rec.NodeUID, "")
	assert.Assert(t, exists(in.Data.BootstrapKubeconfig()))
}

func TestJoinByKubeconfig(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	now := time.Now()
	certPEM, keyPEM := c.ca.nodeCert(t, x509.Certificate{NotBefore: now.Add(-20 * time.Minute)})
	in := c.byFile(config.Join{Kubeconfig: c.kubeconfig(kubeapi.Cluster{CertPEM: certPEM, KeyPEM: keyPEM})})
	in.Now = func() time.Time { return now }
	_, _, err := c.prepare(in)
	assert.NilError(t, err)
	name := "kubelet-client-" + now.Format("2006-01-02-15-04-05") + ".pem"
	got := tree(t, in.Data.Dir)
	assert.Equal(t, len(got), 4, "%v", got)
	assert.Equal(t, got["kubelet/pki/kubelet-client-current.pem"], "/var/lib/kubelet/pki/"+name)
	assert.Equal(t, got["kubernetes/pki/ca.crt"], string(c.ca.pem))
	info, err := os.Stat(filepath.Join(in.Data.KubeletPKI(), name))
	assert.NilError(t, err)
	assert.Equal(t, info.Mode().Perm(), os.FileMode(0o600))
	text, _, err := clientCertificate(in.Data)
	assert.NilError(t, err)
	assert.Assert(t, strings.Contains(string(text), string(certPEM)) && strings.Contains(string(text), string(keyPEM)))

	// A certificate that the kubelet renewed stays; a later one is used.
	c.certify(in.Data, x509.Certificate{NotBefore: now.Add(-10 * time.Minute)})
	_, _, err = c.prepare(in)
	assert.NilError(t, err)
	kept, _, err := clientCertificate(in.Data)
	assert.NilError(t, err)
	assert.Assert(t, !strings.Contains(string(kept), string(certPEM)))
	certPEM, keyPEM = c.ca.nodeCert(t, x509.Certificate{NotBefore: now.Add(-time.Minute)})
	in.Config.Join.Kubeconfig = c.kubeconfig(kubeapi.Cluster{CertPEM: certPEM, KeyPEM: keyPEM})
	_, _, err = c.prepare(in)
	assert.NilError(t, err)
	kept, _, err = clientCertificate(in.Data)
	assert.NilError(t, err)
	assert.Assert(t, strings.Contains(string(kept), string(certPEM)))
}

func TestJoinByKubeconfigFaults(t *testing.T) {
	t.Parallel()
	node := func(tmpl x509.Certificate) func(*fakeCluster) config.Join {
		return func(c *fakeCluster) config.Join {
			certPEM, keyPEM := c.ca.nodeCert(c.t, tmpl)
			return config.Join{Kubeconfig: c.kubeconfig(kubeapi.Cluster{CertPEM: certPEM, KeyPEM: keyPEM})}
		}
	}
	subject := func(cn string, o ...string) x509.Certificate {
		return x509.Certificate{Subject: pkix.Name{CommonName: cn, Organization: o}}
	}
	bootstrap := func(cl kubeapi.Cluster) func(*fakeCluster) config.Join {
		return func(c *fakeCluster) config.Join { return config.Join{BootstrapKubeconfig: c.kubeconfig(cl)} }
	}
	good := bootstrap(kubeapi.Cluster{BearerToken: tokenID + "." + tokenSecret})
	for name, tc := range map[string]struct {
		join  func(*fakeCluster) config.Join
		set   func(*fakeCluster, *Input)
		class error
		texts []string
		hint  string
	}{
		"no such file": {join: func(*fakeCluster) config.Join { return config.Join{Kubeconfig: "/none/kubeconfig"} },
			class: errdefs.ErrConfig, texts: []string{"load kubeconfig /none/kubeconfig", "no such file"}},
		"exec plugin": {join: func(c *fakeCluster) config.Join {
			path := c.kubeconfig(kubeapi.Cluster{BearerToken: "x"})
			text, err := os.ReadFile(path)
			assert.Check(c.t, err)
			text = []byte(strings.Replace(string(text), "token: x", "exec: {command: cloud, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}", 1))
			assert.Check(c.t, os.WriteFile(path, text, 0o600))
			return config.Join{Kubeconfig: path}
		}, class: errdefs.ErrConfig, texts: []string{"an exec plugin (cloud): only a client certificate or a token is supported"}},
		"no credentials": {join: bootstrap(kubeapi.Cluster{}), class: errdefs.ErrConfig, texts: []string{"neither a token nor a client certificate"}},
		"path in server": {join: bootstrap(kubeapi.Cluster{Server: "https://a/b", BearerToken: "x"}), class: errdefs.ErrConfig, texts: []string{"must have the form https://HOST:PORT"}},
		"a token for a node": {join: func(c *fakeCluster) config.Join {
			return config.Join{Kubeconfig: c.kubeconfig(kubeapi.Cluster{BearerToken: "x"})}
		}, class: errdefs.ErrConfig, texts: []string{"the user has no client certificate, which is required for a node"}, hint: "join.bootstrapKubeconfig: "},
		"another node": {join: node(subject("system:node:w2", "system:nodes")), class: errdefs.ErrConfig,
			texts: []string{`is for user "system:node:w2"`, `must be for user "system:node:w1" in group "system:nodes"`}, hint: "nodeName: w2"},
		"an administrator": {join: node(subject("admin", "system:masters")), class: errdefs.ErrConfig, texts: []string{`is for user "admin"`}, hint: "join.bootstrapKubeconfig"},
		"no group":         {join: node(subject("system:node:w1")), class: errdefs.ErrConfig, texts: []string{`in group "system:nodes"`}, hint: "nodeName: w1"},
		"expired certificate": {join: node(x509.Certificate{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}),
			class: errdefs.ErrPreflight, texts: []string{"the certificate expired at "}, hint: "Request a new certificate"},
		"a token too": {join: good, set: func(_ *fakeCluster, in *Input) { in.Token = tokenID + "." + tokenSecret },
			class: errdefs.ErrConfig, texts: []string{"use only one of them"}},
		"refused": {join: good, set: func(c *fakeCluster, _ *Input) { c.refuse["token"] = 401 },
			class: errdefs.ErrPreflight, texts: []string{"rejects the user of /"}, hint: "create a bootstrap token"},
		"unreachable":  {join: good, set: func(c *fakeCluster, _ *Input) { c.Close() }, class: errdefs.ErrPreflight, texts: []string{"is unreachable after "}, hint: "curl"},
		"older server": {join: good, set: func(c *fakeCluster, _ *Input) { c.version = "v1.36.9" }, class: errdefs.ErrPreflight, texts: []string{"is newer than"}, hint: "componentsDir"},
		"another's certificate": {join: good, set: func(c *fakeCluster, _ *Input) { c.serve(newAuthority(c.t), x509.Certificate{}) },
			class: errdefs.ErrPreflight, texts: []string{"is not signed by the cluster's CA"}, hint: "proxy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			in := c.byFile(tc.join(c))
			if tc.set != nil {
				tc.set(c, &in)
			}
			_, _, err := c.prepare(in)
			assert.Assert(t, err != nil)
			assert.Check(t, is.ErrorIs(err, tc.class))
			for _, text := range tc.texts {
				assert.Check(t, is.ErrorContains(err, text))
			}
			assert.Check(t, is.Contains(strings.Join(errdefs.ReportOf(err).Hints, "\n"), tc.hint))
			assert.Check(t, is.Len(tree(t, in.Data.Dir), 0), "no partial files")
		})
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Join = config.Join{BootstrapKubeconfig: "/b"}
	cfg.Complete(config.HostFacts{Hostname: "h", XDGDataHome: "/d"})
	was := *cfg
	(&Record{Server: "https://a:1"}).Apply(cfg)
	assert.Equal(t, cfg.Join.Server, "https://a:1")
	assert.Equal(t, cfg.Join.BootstrapKubeconfig, "")
	assert.Assert(t, cfg.Joins() && !cfg.ControlPlane.Embedded)
	assert.DeepEqual(t, cfg.Cluster, was.Cluster)

	(&Record{Server: "https://a:1", Cluster: &Cluster{
		PodCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16", DNSAddress: "10.2.0.10", Domain: "d", Backend: "wireguard", VXLANPort: 9,
		PodCIDRv6: "fd01::/56", ServiceCIDRv6: "fd02::/112",
	}}).Apply(cfg)
	want := was.Cluster
	want.PodCIDR, want.ServiceCIDR, want.DNSAddress, want.Domain = "10.1.0.0/16", "10.2.0.0/16", "10.2.0.10", "d"
	want.PodCIDRv6, want.ServiceCIDRv6 = "fd01::/56", "fd02::/112"
	assert.DeepEqual(t, cfg.Cluster, want)
	assert.DeepEqual(t, cfg.Flannel, config.Flannel{Backend: "wireguard", VXLANPort: 9})
	assert.Equal(t, was.Join.BootstrapKubeconfig, "/b")
	assert.NilError(t, cfg.Validate())
}

func TestParseCluster(t *testing.T) {
	t.Parallel()
	got, err := ParseCluster(map[string]string{
		"podCIDR": "10.1.0.0/16", "serviceCIDR": "10.2.0.0/16", "dnsAddress": "10.2.0.10", "domain": "d", "backend": "vxlan", "vxlanPort": "8472",
		"podCIDRv6": "fd01::/56", "serviceCIDRv6": "fd02::/112", "ofLater": "x",
	})
	assert.NilError(t, err)
	assert.DeepEqual(t, *got, Cluster{
		PodCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16", DNSAddress: "10.2.0.10", Domain: "d", PodCIDRv6: "fd01::/56", ServiceCIDRv6: "fd02::/112",
		Backend: "vxlan", VXLANPort: 8472,
	})
	_, err = ParseCluster(map[string]string{"podCIDR": "fd01::/56", "podCIDRv6": "10.1.0.0/16", "vxlanPort": "70000"})
	for _, key := range []string{"podCIDR", "serviceCIDR", "podCIDRv6", "dnsAddress", "domain", "backend", "vxlanPort"} {
		assert.ErrorContains(t, err, key+": ")
	}
}

// TestUnknownHost checks that there is no retry for a name that does not exist.
func TestUnknownHost(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	in := c.input()
	j := newJoiner(in)
	tries := 0
	err := j.query(t.Context(), kubeapi.Cluster{Server: c.URL, Insecure: true}, false, func(context.Context, *kubeapi.Client) error {
		tries++
		return fmt.Errorf("get /version: %w", &net.DNSError{Err: "no such host", Name: "none.example", IsNotFound: true})
	})
	assert.Equal(t, tries, 1)
	faultIs(t, err, errdefs.ErrPreflight, []string{"is unreachable after 1 attempt: ", "no such host"}, []string{"curl"})
}
