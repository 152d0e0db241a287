package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Cluster says where an API server is, how it is known, and who asks. It holds data only, no name of a file, so that it
// means the same on the host and inside.
type Cluster struct {
	// Server is the URL, https://HOST:PORT.
	Server string
	// CA holds the PEM certificates of the authorities that may have certified the server.
	CA []byte
	// Insecure takes any certificate of the server for good. It is for the discovery of a cluster alone, whose answer is
	// proven by other means: with credentials it is refused.
	Insecure bool
	// BearerToken, or CertPEM with KeyPEM, is who asks; all empty, it is nobody in particular. Both PEMs may be the same
	// text with certificate and key. These are secrets.
	BearerToken     string
	CertPEM, KeyPEM []byte
}

// NewForCluster prepares a client as New does. It does not connect.
func NewForCluster(cl Cluster, o Options) (*Client, error) {
	switch {
	case cl.Insecure && (cl.BearerToken != "" || len(cl.CertPEM)+len(cl.KeyPEM) > 0):
		return nil, fmt.Errorf("prepare transport to %s: credentials are not for a server that nobody vouches for", cl.Server)
	case !cl.Insecure && len(cl.CA) == 0:
		return nil, fmt.Errorf("prepare transport to %s: no authority given that certifies the server", cl.Server)
	}
	return newForConfig(&rest.Config{
		Host: cl.Server, BearerToken: cl.BearerToken,
		TLSClientConfig: rest.TLSClientConfig{Insecure: cl.Insecure, CAData: cl.CA, CertData: cl.CertPEM, KeyData: cl.KeyPEM},
	}, o)
}

// Kubeconfig renders a kubeconfig that stands alone. It is a secret if cl has credentials.
func (cl Cluster) Kubeconfig(user string) ([]byte, error) {
	const name = "cluster"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{Server: cl.Server, CertificateAuthorityData: cl.CA}
	cfg.AuthInfos[user] = &clientcmdapi.AuthInfo{
		Token: cl.BearerToken, ClientCertificateData: cl.CertPEM, ClientKeyData: cl.KeyPEM,
	}
	cfg.Contexts[user] = &clientcmdapi.Context{Cluster: name, AuthInfo: user}
	cfg.CurrentContext = user
	return clientcmd.Write(*cfg)
}

// LoadCluster reads the current context of the kubeconfig file at path, and the files that it names. What does not come
// down to data is an error: a program that makes credentials, a password, a server that is not verified.
func LoadCluster(path string) (Cluster, error) {
	cl, err := loadCluster(path)
	if err != nil {
		return Cluster{}, fmt.Errorf("load kubeconfig %s: %w", path, err)
	}
	return cl, nil
}

func loadCluster(path string) (Cluster, error) {
	raw, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return Cluster{}, err
	}
	// This also makes the names of files relative to the kubeconfig's place absolute.
	if err := clientcmd.ResolveLocalPaths(raw); err != nil {
		return Cluster{}, err
	}
	if kubeCtx := raw.Contexts[raw.CurrentContext]; kubeCtx != nil && raw.AuthInfos[kubeCtx.AuthInfo] != nil {
		if what := dynamic(raw.AuthInfos[kubeCtx.AuthInfo]); what != "" {
			return Cluster{}, fmt.Errorf("user %q has %s: want a client certificate or a token", kubeCtx.AuthInfo, what)
		}
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*raw, nil).ClientConfig()
	if err != nil {
		return Cluster{}, err
	}
	if cfg.Insecure {
		return Cluster{}, errors.New("insecure-skip-tls-verify is set: want certificate-authority-data")
	}
	if cfg.ServerName != "" {
		return Cluster{}, errors.New("tls-server-name is set: want a server whose certificate has the name by which it is reached")
	}
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return Cluster{}, err
	}
	if len(cfg.CAData) == 0 {
		return Cluster{}, errors.New("no certificate-authority: want that of the cluster")
	}
	return Cluster{
		Server: cfg.Host, CA: cfg.CAData, CertPEM: cfg.CertData, KeyPEM: cfg.KeyData,
		BearerToken: strings.TrimSpace(cfg.BearerToken), // a token file's content is there too
	}, nil
}

// dynamic names what of a user is no certificate and no token.
func dynamic(u *clientcmdapi.AuthInfo) string {
	switch {
	case u.Exec != nil:
		return "an exec plugin (" + u.Exec.Command + ")"
	case u.AuthProvider != nil:
		return "an auth-provider (" + u.AuthProvider.Name + ")"
	case u.Username != "" || u.Password != "":
		return "a password"
	case u.Impersonate != "" || u.ImpersonateUID != "" || len(u.ImpersonateGroups)+len(u.ImpersonateUserExtra) > 0:
		return "impersonation"
	}
	return ""
}

// ParseClusterInfo reads the kubeconfig of a ConfigMap cluster-info: one cluster, with the authority as data, and no
// user. Anyone can write such a text: verify its signature first.
func ParseClusterInfo(kubeconfig []byte) (Cluster, error) {
	raw, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return Cluster{}, err
	}
	if len(raw.Clusters) != 1 {
		return Cluster{}, fmt.Errorf("want one cluster, found %d", len(raw.Clusters))
	}
	for _, cl := range raw.Clusters {
		if len(cl.CertificateAuthorityData) == 0 {
			return Cluster{}, errors.New("no certificate-authority-data")
		}
		return Cluster{Server: cl.Server, CA: cl.CertificateAuthorityData}, nil
	}
	return Cluster{}, nil
}

// Version is the API server's version as it gives it, such as v1.37.2.
func (c *Client) Version(ctx context.Context) (string, error) {
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := c.do(ctx, request{method: http.MethodGet, path: "/version"}, &v); err != nil {
		return "", fmt.Errorf("read the API server's version: %w", err)
	}
	return v.GitVersion, nil
}
