package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// host returns options for a host with this name.
func host(name string) Options {
	return Options{hostname: func() (string, error) { return name, nil }}
}

// claimed returns a node whose data dir has a record, as after the preflight of a start.
func claimed(t *testing.T, cfg *config.NodeConfig, o Options) *Node {
	t.Helper()
	testutil.Require(t, testutil.Subids)
	n, err := New(cfg, o)
	assert.NilError(t, err)
	assert.NilError(t, claim(t.Context(), n))
	return n
}

func identityOf(t *testing.T, n *Node) datadir.Identity {
	t.Helper()
	i, err := datadir.ReadIdentity(n.Data())
	assert.NilError(t, err)
	return i
}

// TestRenamedHost checks that a node keeps the name of its Node object when its host is renamed, and reports it, until the user names it.
func TestRenamedHost(t *testing.T) {
	home(t)
	claimed(t, config.Default(), host("Blue."))
	log, messages := logtest.NewNullLogger()
	renamed := host("red")
	renamed.Log = log
	n := claimed(t, config.Default(), renamed)
	assert.Equal(t, n.Config().NodeName, "blue")
	assert.Assert(t, cmp.Len(identityOf(t, n).FormerNodes, 0))
	assert.Equal(t, len(messages.Entries), 1)
	assert.Equal(t, messages.LastEntry().Level, logrus.WarnLevel)
	assert.Assert(t, cmp.Contains(messages.LastEntry().Message, `the host is now called "red" and was called "blue"`))

	messages.Reset()
	cfg := config.Default()
	cfg.NodeName = "red"
	n = claimed(t, cfg, renamed)
	assert.Equal(t, n.Config().NodeName, "red")
	assert.DeepEqual(t, identityOf(t, n).FormerNodes, []string{"blue"})
	n = claimed(t, config.Default(), renamed)
	assert.Equal(t, n.Config().NodeName, "red")
	assert.DeepEqual(t, identityOf(t, n).FormerNodes, []string{"blue"}) // the node has not removed it yet
	assert.Equal(t, len(messages.Entries), 0)
}

// TestInvalidHostName checks that an invalid name of the host prevents only the first start of a node.
func TestInvalidHostName(t *testing.T) {
	home(t)
	_, err := New(config.Default(), host("my_host"))
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	n, err := Attach("default", host("my_host"))
	assert.NilError(t, err)
	assert.Equal(t, n.Config().Name, "default")
	claimed(t, config.Default(), host("blue"))
	n = claimed(t, config.Default(), host("my_host"))
	assert.Equal(t, n.Config().NodeName, "blue")
}

// TestAttachDamagedConfig checks that a damaged config of the running node does not prevent commands for it.
func TestAttachDamagedConfig(t *testing.T) {
	home(t)
	log, messages := logtest.NewNullLogger()
	n, err := New(config.Default(), Options{})
	assert.NilError(t, err)
	for _, text := range []string{"", "{", "[1]"} {
		write(t, n.Runtime().Config())
		assert.NilError(t, os.WriteFile(n.Runtime().Config(), []byte(text), 0o600))
		attached, err := Attach("default", Options{Log: log})
		assert.NilError(t, err)
		assert.Equal(t, attached.Data().Dir, n.Data().Dir)
		assert.Equal(t, messages.LastEntry().Message, "read the running node's config; using the defaults instead")
	}
}

// TestChangedNetworks checks that settings that the data does not permit are refused together, with their former values.
func TestChangedNetworks(t *testing.T) {
	home(t)
	claimed(t, config.Default(), Options{})
	changed := config.Default()
	changed.Cluster.ServiceCIDR, changed.Cluster.PodCIDR, changed.Cluster.Domain = "10.60.0.0/16", "10.61.0.0/16", "example.org"
	n := claimed(t, changed, Options{}) // no cluster was created yet
	assert.Equal(t, identityOf(t, n).Networks.ServiceCIDR, "10.60.0.0/16")

	write(t, filepath.Join(n.Data().Dir, "etcd", "member", "x"))
	write(t, filepath.Join(n.Data().PKI(), "encryption-config.yaml"))
	_, err := New(changed, Options{})
	assert.NilError(t, err)
	_, err = New(config.Default(), Options{})
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.Equal(t, err.Error(), `cluster.podCIDR: 10.42.0.0/16: the cluster of node "default" was created with 10.61.0.0/16, and this cannot be changed
cluster.serviceCIDR: 10.43.0.0/16: the cluster of node "default" was created with 10.60.0.0/16, and this cannot be changed
cluster.domain: cluster.local: the cluster of node "default" was created with example.org, and this cannot be changed`)
	hints := strings.Join(errdefs.ReportOf(err).Hints, "\n")
	assert.Assert(t, cmp.Contains(hints, "cluster.podCIDR=10.61.0.0/16 cluster.serviceCIDR=10.60.0.0/16 cluster.domain=example.org"))
	assert.Assert(t, cmp.Contains(hints, "delete the data"))
	_, err = Attach("default", Options{})
	assert.NilError(t, err)

	changed.Cluster.DNSAddress = "10.60.0.53"
	_, err = New(changed, Options{})
	assert.ErrorContains(t, err, "cluster.dnsAddress: 10.60.0.53: the cluster of node \"default\" was created with 10.60.0.10")
	changed.Cluster.DNSAddress = ""
	assert.NilError(t, datadir.UpdateIdentity(n.Data(), func(i *datadir.Identity) { i.Networks.DNSAddress = "10.60.0.53" }))
	n, err = New(changed, Options{})
	assert.NilError(t, err)
	assert.Equal(t, n.Config().Cluster.DNSAddress, "10.60.0.53", "an address that is not set must stay")
	changed.Network.IPv6 = true
	n = claimed(t, changed, Options{})
	assert.Equal(t, identityOf(t, n).Networks.PodCIDRv6, changed.Cluster.PodCIDRv6)
	changed.Cluster.PodCIDRv6 = "fd00:11:42::/56"
	_, err = New(changed, Options{})
	assert.ErrorContains(t, err, "cluster.podCIDRv6")
}

// TestChangedEncryption checks that a start is refused if the API server could not read the Secrets of the cluster.
func TestChangedEncryption(t *testing.T) {
	home(t)
	const first, second = "{secretbox: {keys: [{name: a, secret: YQ==}]}}", "{secretbox: {keys: [{name: b, secret: Yg==}]}}"
	n := claimed(t, config.Default(), Options{})
	file := filepath.Join(n.Data().PKI(), "encryption-config.yaml")
	write(t, filepath.Join(n.Data().Dir, "etcd", "member", "x"))
	assert.NilError(t, datadir.UpdateIdentity(n.Data(), func(i *datadir.Identity) { i.EncryptionKey = "secretbox a (sha256:ff6c0e5a7b16)" }))
	try := func(providers string) error {
		t.Helper()
		write(t, file)
		assert.NilError(t, os.WriteFile(file, []byte("kind: EncryptionConfiguration\nresources: [{resources: [secrets], providers: ["+providers+"]}]"), 0o600))
		_, err := New(config.Default(), Options{})
		return err
	}
	assert.NilError(t, try(first))
	assert.NilError(t, try(second+", "+first), "a new key before the former one")
	err := try(second)
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, "were written with the key secretbox a (sha256:ff6c0e5a7b16), which is not in "+file+": its keys are secretbox b")
	assert.Assert(t, cmp.Contains(strings.Join(errdefs.ReportOf(err).Hints, "\n"), "restore the file from a backup"))
	assert.NilError(t, os.Remove(file))
	_, err = New(config.Default(), Options{})
	assert.ErrorContains(t, err, "no such file or directory")

	other := filepath.Join(t.TempDir(), "own.yaml")
	cfg := config.Default()
	cfg.ControlPlane.APIServerExtraArgs = []string{"--encryption-provider-config=" + other}
	_, err = New(cfg, Options{})
	assert.NilError(t, err, "the file may exist only inside")
	assert.NilError(t, os.WriteFile(other, []byte("kind: EncryptionConfiguration"), 0o600))
	_, err = New(cfg, Options{})
	assert.ErrorContains(t, err, "which is not in "+other+": its keys are identity")
}

func TestCheckVersion(t *testing.T) {
	home(t)
	n, err := New(config.Default(), Options{})
	assert.NilError(t, err)
	for _, c := range []struct{ was, now, want string }{
		{"v1.37.2", "v1.37.2", ""},
		{"v1.37.2", "v1.37.0", ""},
		{"v1.36.4", "v1.37.0", ""},
		{"", "v1.37.0", ""},
		{"v1.37.0", "", ""},
		{"v1.37.2", "v1.36.9", `Kubernetes v1.36.9 cannot use the data of node "default", which was last used with the newer minor version v1.37.2`},
		{"v1.35.1", "v1.37.2", `Kubernetes v1.37.2 cannot upgrade the data of node "default" by more than one minor version from v1.35.1`},
	} {
		err := checkVersion(n, "Kubernetes", c.was, c.now)
		if c.want == "" {
			assert.NilError(t, err, "%+v", c)
			continue
		}
		assert.Error(t, err, c.want)
	}
}

// TestRefusedVersionHints checks that a refused version shows how to start the node, and how to return to a snapshot.
func TestRefusedVersionHints(t *testing.T) {
	home(t)
	n := claimed(t, config.Default(), Options{})
	hints := func(was, now string) string {
		return strings.Join(errdefs.ReportOf(checkVersion(n, "Kubernetes", was, now)).Hints, "\n")
	}
	assert.Equal(t, hints("v1.35.1", "v1.37.2"), "# first start the node with Kubernetes v1.36:\n"+
		"make components KUBERNETES=1.36    # or install a release that contains it\nstart the node kubernetesVersion=v1.36\n"+
		"# or delete the cluster with all its data:\ndelete the data of the node")
	write(t, filepath.Join(n.Data().Dir, "etcd", "member", "x"))
	for _, v := range []string{"v1.36.3", "v1.37.2"} {
		_, err := datadir.Use(n.Data(), datadir.Versions{Kubernetes: v})
		assert.NilError(t, err)
	}
	all, err := n.Snapshots().List()
	assert.NilError(t, err)
	assert.Assert(t, cmp.Contains(hints("v1.37.2", "v1.36.9"), "later changes in the cluster are lost:\nrestore the snapshot "+all[0].Name+
		"\nstart the node kubernetesVersion=v1.36\n"))
}

// TestAdopt checks that the identity of data of an earlier version is taken from the certificates and the CNI configuration of its last run.
func TestAdopt(t *testing.T) {
	home(t)
	n := claimed(t, config.Default(), host("red"))
	assert.NilError(t, datadir.UpdateIdentity(n.Data(), func(i *datadir.Identity) { *i = datadir.Identity{} }))
	write(t, filepath.Join(n.Data().Dir, "etcd", "member", "x"))
	certificate(t, filepath.Join(n.Data().PKI(), "kubelet-client.crt"), &x509.Certificate{Subject: pkix.Name{CommonName: "system:node:blue"}})
	certificate(t, filepath.Join(n.Data().PKI(), "apiserver.crt"), &x509.Certificate{
		DNSNames: []string{"kubernetes", "kubernetes.default.svc.cluster.local"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 43, 0, 1)},
	})
	cni, _ := n.Data().OnHost(layout.InsideCNIConfFile)
	write(t, cni)
	assert.NilError(t, os.WriteFile(cni, []byte(`{"plugins": [{"ipam": {"ranges": [[{"subnet": "10.42.3.0/24"}]]}}]}`), 0o600))

	changed := config.Default()
	changed.Cluster.PodCIDR, changed.Cluster.ServiceCIDR, changed.Cluster.Domain = "10.52.0.0/16", "10.53.0.0/16", "example.org"
	_, err := New(changed, host("red"))
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	for _, text := range []string{
		"was created with a network that contains 10.42.3.0/24", "was created with another network", "was created with cluster.local",
	} {
		assert.ErrorContains(t, err, text)
	}
	assert.Assert(t, cmp.Contains(strings.Join(errdefs.ReportOf(err).Hints, "\n"), "start the node cluster.domain=cluster.local\n"))
	n = claimed(t, config.Default(), host("red"))
	assert.Equal(t, n.Config().NodeName, "blue")
	i := identityOf(t, n)
	assert.Equal(t, i.NodeName+" "+i.HostName+" "+i.Networks.ServiceCIDR+" "+i.Runtime, "blue blue 10.43.0.0/16 containerd")
}

// certificate writes a certificate with the fields of c.
func certificate(t *testing.T, path string, c *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NilError(t, err)
	c.SerialNumber = big.NewInt(1)
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	assert.NilError(t, err)
	write(t, path)
	assert.NilError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
}
