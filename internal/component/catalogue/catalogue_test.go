package catalogue

import (
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
)

func certificates(t *testing.T, e component.Env) map[string]component.Certificate {
	t.Helper()
	spec, err := Spec(e)
	assert.NilError(t, err)
	all := map[string]component.Certificate{}
	for _, c := range spec.Certificates {
		all[c.Name] = c
	}
	assert.Equal(t, len(all), len(spec.Certificates))
	return all
}

func TestSpec(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	all := certificates(t, e)
	assert.Equal(t, len(all), 13)
	e.Config.NetworkPolicy = config.NetworkPolicyKube
	c := certificates(t, e)["network-policy"]
	assert.Assert(t, c.CommonName == "rootlessnode:network-policy" && c.Client && !c.Server && len(c.Organizations) == 0)
}

func TestServerNames(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.Config.API.BindAddress = "192.0.2.7"
	e.Config.API.ExtraSANs = []string{"node.example.com", "2001:db8::7"}
	spec, err := Spec(e)
	assert.NilError(t, err)
	dir := t.TempDir()
	_, err = pki.Ensure(dir, spec, time.Now())
	assert.NilError(t, err)
	certOf := func(name string) *x509.Certificate {
		data, err := os.ReadFile(filepath.Join(dir, name+".crt"))
		assert.NilError(t, err)
		block, _ := pem.Decode(data)
		cert, err := x509.ParseCertificate(block.Bytes)
		assert.NilError(t, err)
		return cert
	}

	api := certOf("apiserver")
	for _, name := range []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"localhost", "127.0.0.1", "::1", "10.43.0.1", "10.0.2.100", "192.0.2.7", "worker-1", "machine", "Machine",
		"node.example.com", "2001:db8::7",
	} {
		assert.NilError(t, api.VerifyHostname(name))
	}
	assert.ErrorContains(t, api.VerifyHostname("10.43.0.2"), "valid for")

	for _, name := range []string{"worker-1", "10.0.2.100", "127.0.0.1", "localhost"} {
		assert.NilError(t, certOf("kubelet-server").VerifyHostname(name))
	}
	client := certOf("kubelet-client")
	assert.Equal(t, client.Subject.CommonName, "system:node:worker-1")
	assert.DeepEqual(t, client.Subject.Organization, []string{"system:nodes"})
	assert.NilError(t, certOf("etcd/server").VerifyHostname("127.0.0.1"))
}

func TestUnspecifiedBindAddress(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.Config.API.BindAddress = "0.0.0.0"
	assert.Assert(t, !slices.Contains(certificates(t, e)["apiserver"].Addresses, netip.IPv4Unspecified()))
}

func TestSpecReportsAllFaults(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.NodeIP, e.Config.API.BindAddress, e.Config.Cluster.ServiceCIDR = "?", "everywhere", "10.43.0.0"
	_, err := Spec(e)
	for _, want := range []string{"node address", "api.bindAddress", "cluster.serviceCIDR"} {
		assert.ErrorContains(t, err, want)
	}
}

func TestForwards(t *testing.T) {
	t.Parallel()
	node := netip.MustParseAddr("192.0.2.7")
	names := func(c *config.NodeConfig, node netip.Addr) (list []string) {
		for _, p := range Forwards(c, node) {
			list = append(list, netip.AddrPortFrom(p.Forward.Address, uint16(p.Forward.Port)).String()+"/"+p.Proto)
		}
		return list
	}
	c := fixture.Env().Config
	assert.DeepEqual(t, names(c, netip.Addr{}), []string{"127.0.0.1:6443/tcp"})
	assert.DeepEqual(t, names(c, node), []string{"127.0.0.1:6443/tcp", "192.0.2.7:10250/tcp", "192.0.2.7:8472/udp"})
	c.Flannel.Backend = "wireguard"
	assert.DeepEqual(t, names(c, node)[2:], []string{"192.0.2.7:51820/udp"})
	c = fixture.Worker().Config
	c.CNI = config.CNINone
	assert.DeepEqual(t, names(c, node), []string{"192.0.2.7:10250/tcp"})
}
