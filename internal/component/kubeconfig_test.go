package component

import (
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"
	clientcmd "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

func TestRenderKubeconfig(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]Kubeconfig{
		"files": {CAFile: "/pki/ca.crt", CertFile: "/pki/admin.crt", KeyFile: "/pki/admin.key"},
		"data":  {CAData: []byte("authority"), CertData: []byte("certificate"), KeyData: []byte("key")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k.Server, k.Cluster, k.User = "https://127.0.0.1:6443", "cluster: {x}", "admin"
			data, err := RenderKubeconfig(k)
			assert.NilError(t, err)
			golden.AssertBytes(t, data, "kubeconfig-"+name+".golden")

			var c clientcmd.Config
			assert.NilError(t, yaml.UnmarshalStrict(data, &c))
			assert.Equal(t, c.CurrentContext, k.Cluster)
			assert.DeepEqual(t, c.Clusters[0].Cluster, clientcmd.Cluster{
				Server: k.Server, CertificateAuthority: k.CAFile, CertificateAuthorityData: k.CAData,
			})
			assert.DeepEqual(t, c.AuthInfos[0].AuthInfo, clientcmd.AuthInfo{
				ClientCertificate: k.CertFile, ClientCertificateData: k.CertData, ClientKey: k.KeyFile, ClientKeyData: k.KeyData,
			})
		})
	}
}

// TestIncludesKubeconfig checks that changes of a user count as changes only if they concern the credentials.
func TestIncludesKubeconfig(t *testing.T) {
	t.Parallel()
	k := Kubeconfig{Server: "s", Cluster: "c", User: "admin", CAData: []byte("authority"), CertData: []byte("certificate"), KeyData: []byte("key")}
	render := func(k Kubeconfig) []byte {
		data, err := RenderKubeconfig(k)
		assert.NilError(t, err)
		return data
	}
	other := k
	other.CertData = []byte("renewed")
	var c clientcmd.Config
	assert.NilError(t, yaml.UnmarshalStrict(render(k), &c))
	c.Contexts[0].Context.Namespace = "mine"
	c.AuthInfos = append(c.AuthInfos, clientcmd.NamedAuthInfo{Name: "more"})
	changed, err := yaml.Marshal(c)
	assert.NilError(t, err)

	assert.Assert(t, IncludesKubeconfig(changed, render(k)))
	assert.Assert(t, !IncludesKubeconfig(changed, render(other)))
	assert.Assert(t, !IncludesKubeconfig([]byte("{"), render(k)))
	assert.Assert(t, !IncludesKubeconfig(nil, render(k)))

	cert, err := KubeconfigCertificate(changed, "admin")
	assert.NilError(t, err)
	assert.Equal(t, string(cert), "certificate")
	_, err = KubeconfigCertificate(changed, "nobody")
	assert.ErrorContains(t, err, `no user "nobody"`)
}

func TestRenderKubeconfigRefuses(t *testing.T) {
	t.Parallel()
	_, err := RenderKubeconfig(Kubeconfig{})
	assert.ErrorContains(t, err, "must be set")
	assert.ErrorContains(t, err, "all as files or all as data")
	_, err = RenderKubeconfig(Kubeconfig{
		Server: "s", Cluster: "c", User: "u", CAFile: "f", CertFile: "f", KeyData: []byte("k"),
	})
	assert.ErrorContains(t, err, "all as files or all as data")
}

func TestVerbosity(t *testing.T) {
	t.Parallel()
	assert.Equal(t, Verbosity("debug"), debugVerbosity)
	for _, level := range []string{"info", "warning", "error"} {
		assert.Equal(t, Verbosity(level), 0)
	}
}
