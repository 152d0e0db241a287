package catalogue

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
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
	assert.Equal(t, len(all), 15)
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
	for name, tc := range map[string]struct {
		set  func(*config.NodeConfig)
		node string
		want []string
	}{
		"alone": {func(*config.NodeConfig) {}, "", []string{"api 127.0.0.1:6443/tcp 6443"}},
		"vxlan": {func(c *config.NodeConfig) { c.Inside.KubeletPort, c.Flannel.VXLANPort = 10350, 4789 }, "192.0.2.7", []string{
			"api 127.0.0.1:6443/tcp 6443", "kubelet 192.0.2.7:10350/tcp 10350", "pod-network 192.0.2.7:4789/udp 4789",
		}},
		"wireguard": {func(c *config.NodeConfig) { c.Flannel.Backend = "wireguard" }, "192.0.2.7", []string{
			"api 127.0.0.1:6443/tcp 6443", "kubelet 192.0.2.7:10250/tcp 10250", "pod-network 192.0.2.7:51820/udp 51820",
		}},
		"worker": {func(c *config.NodeConfig) { c.ControlPlane.Embedded, c.CNI = false, config.CNINone }, "192.0.2.7", []string{
			"kubelet 192.0.2.7:10250/tcp 10250",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config.Default()
			tc.set(c)
			node, _ := netip.ParseAddr(tc.node)
			var got []string
			for _, p := range Forwards(c, node) {
				at := netip.AddrPortFrom(p.Forward.Address, uint16(p.Forward.Port))
				got = append(got, fmt.Sprintf("%s %s/%s %d", p.Forward.Name, at, p.Proto, p.Number))
			}
			assert.DeepEqual(t, got, tc.want)
		})
	}
}
