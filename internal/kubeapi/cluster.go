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

// Cluster is the address of an API server, its certificate authority, and the client's identity. It contains only data and
// no file names, so that it means the same on the host and inside.
type Cluster struct {
	// Server is the URL, https://HOST:PORT.
	Server string
	// CA holds the PEM certificates of the authorities that may sign the server's certificate.
	CA []byte
	// Insecure accepts any certificate of the server. It is only for the discovery of a cluster, whose result is verified by
	// other means. It must not be combined with credentials.
	Insecure bool
	// BearerToken, or CertPEM with KeyPEM, is the client's identity; if all are empty, the client is anonymous. Both PEMs
	// may be the same text with certificate and key. These are secrets.
	BearerToken     string
	CertPEM, KeyPEM []byte
}

// NewForCluster prepares a client like New. It does not connect.
func NewForCluster(cl Cluster, o Options) (*Client, error) {
	switch {
	case cl.Insecure && (cl.BearerToken != "" || len(cl.CertPEM)+len(cl.KeyPEM) > 0):
		return nil, fmt.Errorf("prepare transport to %s: refusing to send credentials to a server that is not verified", cl.Server)
	case !cl.Insecure && len(cl.CA) == 0:
		return nil, fmt.Errorf("prepare transport to %s: no certificate authority is set", cl.Server)
	}
	return newForConfig(&rest.Config{
		Host: cl.Server, BearerToken: cl.BearerToken,
		TLSClientConfig: rest.TLSClientConfig{Insecure: cl.Insecure, CAData: cl.CA, CertData: cl.CertPEM, KeyData: cl.KeyPEM},
	}, o)
}

// Kubeconfig returns a self-contained kubeconfig. It is a secret if cl has credentials.
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

// LoadCluster reads the current context of the kubeconfig file at path and the files that it references. A context that is
// more than data is an error: a program that provides credentials, a password, or a server that is not verified.
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
	// This also makes relative file names absolute, based on the kubeconfig's directory.
	if err := clientcmd.ResolveLocalPaths(raw); err != nil {
		return Cluster{}, err
	}
	if kubeCtx := raw.Contexts[raw.CurrentContext]; kubeCtx != nil && raw.AuthInfos[kubeCtx.AuthInfo] != nil {
		if what := unsupportedAuth(raw.AuthInfos[kubeCtx.AuthInfo]); what != "" {
			return Cluster{}, fmt.Errorf("user %q has %s: only a client certificate or a token is supported", kubeCtx.AuthInfo, what)
		}
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*raw, nil).ClientConfig()
	if err != nil {
		return Cluster{}, err
	}
	if cfg.Insecure {
		return Cluster{}, errors.New("insecure-skip-tls-verify is not supported: use certificate-authority-data")
	}
	if cfg.ServerName != "" {
		return Cluster{}, errors.New("tls-server-name is not supported: the server's certificate must contain the name in the server URL")
	}
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return Cluster{}, err
	}
	if len(cfg.CAData) == 0 {
		return Cluster{}, errors.New("no certificate-authority: add that of the cluster")
	}
	return Cluster{
		Server: cfg.Host, CA: cfg.CAData, CertPEM: cfg.CertData, KeyPEM: cfg.KeyData,
		BearerToken: strings.TrimSpace(cfg.BearerToken), // also contains the content of a token file
	}, nil
}

// unsupportedAuth describes the part of a user that is not a certificate or a token, or returns an empty string.
func unsupportedAuth(u *clientcmdapi.AuthInfo) string {
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

// ParseClusterInfo parses the kubeconfig in the ConfigMap cluster-info: one cluster with inline authority data and no user.
// Any client can write such a text, so verify its signature first.
func ParseClusterInfo(kubeconfig []byte) (Cluster, error) {
	raw, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return Cluster{}, err
	}
	if len(raw.Clusters) != 1 {
		return Cluster{}, fmt.Errorf("must contain exactly one cluster, found %d", len(raw.Clusters))
	}
	for _, cl := range raw.Clusters {
		if len(cl.CertificateAuthorityData) == 0 {
			return Cluster{}, errors.New("no certificate-authority-data")
		}
		return Cluster{Server: cl.Server, CA: cl.CertificateAuthorityData}, nil
	}
	return Cluster{}, nil
}

// Version returns the version that the API server reports, such as v1.37.2.
func (c *conn) Version(ctx context.Context) (string, error) {
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := c.do(ctx, request{method: http.MethodGet, path: "/version"}, &v); err != nil {
		return "", fmt.Errorf("read the API server's version: %w", err)
	}
	return v.GitVersion, nil
}
