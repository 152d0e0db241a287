package kubeapi

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// TestAsRoot checks that root with a kubeconfig of another account executes no program and sends no file of root.
func TestAsRoot(t *testing.T) {
	t.Parallel()
	roots := testutil.RootOnlyDir(t)
	accounts := t.TempDir() // below a world-writable directory
	f := newFakeAPI(t, true)
	asked := ""
	f.other = func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header.Get("Authorization")
		answer(w, 200, object{"gitVersion": "v1.37.2"})
	}
	write := func(dir, name, text string) string {
		path := filepath.Join(dir, name)
		assert.NilError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	ca := pemOf(f.Certificate())
	secret, accountsToken := write(roots, "secret", "root-only\n"), write(accounts, "token", "account")
	marker := filepath.Join(accounts, "marker")
	program := &clientcmdapi.ExecConfig{
		Command: "/bin/sh", Args: []string{"-c", "touch " + marker}, APIVersion: "client.authentication.k8s.io/v1",
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}
	for name, tc := range map[string]struct {
		cluster clientcmdapi.Cluster
		user    clientcmdapi.AuthInfo
		// account and root are the expected errors for a kubeconfig of either; empty means success, with sent as the header.
		account, root, sent string
	}{
		"token":               {user: clientcmdapi.AuthInfo{Token: "inline"}, sent: "Bearer inline"},
		"password":            {user: clientcmdapi.AuthInfo{Username: "u", Password: "p"}, sent: "Basic dTpw"},
		"impersonation":       {user: clientcmdapi.AuthInfo{Token: "inline", Impersonate: "u"}, sent: "Bearer inline"},
		"exec":                {user: clientcmdapi.AuthInfo{Exec: program}, account: `exec runs the program "/bin/sh"`, root: `exec runs the program "/bin/sh"`},
		"auth-provider":       {user: clientcmdapi.AuthInfo{AuthProvider: &clientcmdapi.AuthProviderConfig{Name: "oidc"}}, account: `auth-provider uses the plugin "oidc"`, root: `auth-provider`},
		"token file":          {user: clientcmdapi.AuthInfo{TokenFile: secret}, account: "tokenFile references the file", sent: "Bearer root-only"},
		"token file, near":    {user: clientcmdapi.AuthInfo{TokenFile: "secret", Token: "inline"}, account: "tokenFile references the file", sent: "Bearer root-only"},
		"token of an account": {user: clientcmdapi.AuthInfo{TokenFile: accountsToken}, account: "tokenFile references the file", root: "can be replaced"},
		"certificate":         {user: clientcmdapi.AuthInfo{ClientCertificate: secret, ClientKeyData: []byte("k")}, account: "client-certificate references the file", root: "-"},
		"key":                 {user: clientcmdapi.AuthInfo{ClientKey: "/etc/shadow", ClientCertificateData: []byte("c")}, account: "client-key references the file", root: "-"},
		"authority":           {cluster: clientcmdapi.Cluster{CertificateAuthority: secret}, account: "certificate-authority references the file", root: "-"},
		"proxy":               {cluster: clientcmdapi.Cluster{ProxyURL: "http://127.0.0.1:1"}, account: "proxy-url is set", root: "-"},
	} {
		cluster, user := tc.cluster, tc.user
		cluster.Server = f.URL
		if cluster.CertificateAuthority == "" {
			cluster.CertificateAuthorityData = ca
		}
		text, err := clientcmd.Write(clientcmdapi.Config{
			Clusters: map[string]*clientcmdapi.Cluster{"c": &cluster}, AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": &user},
			Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
		})
		assert.NilError(t, err)
		for dir, want := range map[string]string{accounts: tc.account, roots: tc.root} {
			c, err := New(write(dir, "kubeconfig", string(text)), Options{AsRoot: true})
			switch {
			case want == "-": // refused for another reason, or not at all
				assert.Assert(t, err == nil || !strings.Contains(err.Error(), "refused when running as root"), "%s: %v", name, err)
			case want != "":
				assert.ErrorContains(t, err, want, name)
			default:
				assert.NilError(t, err, name)
				_, err = c.Version(t.Context())
				assert.NilError(t, err, name)
				assert.Equal(t, asked, tc.sent, name)
				c.Close()
			}
		}
	}
	_, err := os.Stat(marker)
	assert.ErrorIs(t, err, os.ErrNotExist)

	fifo := filepath.Join(accounts, "fifo")
	assert.NilError(t, unix.Mkfifo(fifo, 0o600))
	_, err = New(fifo, Options{AsRoot: true})
	assert.ErrorContains(t, err, "is not a regular file")
	_, err = New(filepath.Join(roots, "missing"), Options{AsRoot: true})
	assert.ErrorIs(t, err, os.ErrNotExist)
}
