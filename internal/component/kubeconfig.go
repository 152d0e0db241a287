package component

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"sigs.k8s.io/yaml"
)

// Kubeconfig is the content of a kubeconfig for one user of one cluster. In a kubeconfig for the host, cluster and user have the same
// name, which no other node of the account has, so that several kubeconfigs can be used together. Certificates are either file names, so that
// the certificates can be renewed without a change of the kubeconfig, or PEM data, for a self-contained kubeconfig.
type Kubeconfig struct {
	// Server is the API server's URL.
	Server string
	// Cluster and User are the names of the entries. The context is named after the cluster.
	Cluster, User string

	CAFile, CertFile, KeyFile string
	CAData, CertData, KeyData []byte
}

type kubeconfig struct {
	TypeMeta       `json:",inline"`
	Clusters       []namedCluster `json:"clusters"`
	Users          []namedUser    `json:"users"`
	Contexts       []namedContext `json:"contexts"`
	CurrentContext string         `json:"current-context"`
}

type namedCluster struct {
	Name    string  `json:"name"`
	Cluster cluster `json:"cluster"`
}

type cluster struct {
	Server string `json:"server"`
	CAFile string `json:"certificate-authority,omitempty"`
	CAData []byte `json:"certificate-authority-data,omitempty"`
}

type namedUser struct {
	Name string `json:"name"`
	User user   `json:"user"`
}

type user struct {
	CertFile string `json:"client-certificate,omitempty"`
	KeyFile  string `json:"client-key,omitempty"`
	CertData []byte `json:"client-certificate-data,omitempty"`
	KeyData  []byte `json:"client-key-data,omitempty"`
}

type namedContext struct {
	Name    string     `json:"name"`
	Context contextRef `json:"context"`
}

type contextRef struct {
	Cluster string `json:"cluster"`
	User    string `json:"user"`
}

// RenderKubeconfig encodes k as a kubeconfig file. With PEM data the result is a secret.
func RenderKubeconfig(k Kubeconfig) ([]byte, error) {
	if err := k.check(); err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", k.User, err)
	}
	return YAML(kubeconfig{
		TypeMeta: TypeMeta{APIVersion: "v1", Kind: "Config"},
		Clusters: []namedCluster{{Name: k.Cluster, Cluster: cluster{Server: k.Server, CAFile: k.CAFile, CAData: k.CAData}}},
		Users: []namedUser{{Name: k.User, User: user{
			CertFile: k.CertFile, KeyFile: k.KeyFile, CertData: k.CertData, KeyData: k.KeyData,
		}}},
		Contexts:       []namedContext{{Name: k.Cluster, Context: contextRef{Cluster: k.Cluster, User: k.User}}},
		CurrentContext: k.Cluster,
	})
}

// KubeconfigServer returns the URL of the API server in a kubeconfig with one cluster.
func KubeconfigServer(data []byte) (string, error) {
	var k kubeconfig
	if err := yaml.Unmarshal(data, &k); err != nil {
		return "", err
	}
	if len(k.Clusters) == 0 {
		return "", errors.New("no cluster")
	}
	return k.Clusters[0].Cluster.Server, nil
}

// KubeconfigCertificate returns the PEM data of the certificate of a user in a kubeconfig with PEM data.
func KubeconfigCertificate(data []byte, user string) ([]byte, error) {
	var k kubeconfig
	if err := yaml.Unmarshal(data, &k); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(k.Users, func(u namedUser) bool { return u.Name == user })
	if i < 0 {
		return nil, fmt.Errorf("no user %q", user)
	}
	return k.Users[i].User.CertData, nil
}

// IncludesKubeconfig reports whether a kubeconfig has all clusters and users of another one. It may have more, which its
// user has added.
func IncludesKubeconfig(data, want []byte) bool {
	var have, other kubeconfig
	if errors.Join(yaml.Unmarshal(data, &have), yaml.Unmarshal(want, &other)) != nil {
		return false
	}
	return includes(have.Clusters, other.Clusters) && includes(have.Users, other.Users)
}

func includes[T any](have, want []T) bool {
	return !slices.ContainsFunc(want, func(w T) bool {
		return !slices.ContainsFunc(have, func(h T) bool { return reflect.DeepEqual(h, w) })
	})
}

func (k Kubeconfig) check() error {
	var errs []error
	if k.Server == "" || k.Cluster == "" || k.User == "" {
		errs = append(errs, errors.New("server, cluster and user must be set"))
	}
	files := k.CAFile != "" && k.CertFile != "" && k.KeyFile != ""
	data := len(k.CAData) > 0 && len(k.CertData) > 0 && len(k.KeyData) > 0
	if files == data {
		errs = append(errs, errors.New("CA, certificate and key must be set, all as files or all as data"))
	}
	return errors.Join(errs...)
}
