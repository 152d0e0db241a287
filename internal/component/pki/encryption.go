package pki

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// The part of Kubernetes' EncryptionConfiguration (apiserver.config.k8s.io/v1) that is used here.
type encryptionConfiguration struct {
	component.TypeMeta `json:",inline"`
	Resources          []encryptedResources `json:"resources"`
}

type encryptedResources struct {
	Resources []string   `json:"resources"`
	Providers []provider `json:"providers"`
}

type provider struct {
	SecretBox *secretBox `json:"secretbox,omitempty"`
	Identity  *struct{}  `json:"identity,omitempty"`
}

type secretBox struct {
	Keys []boxKey `json:"keys"`
}

type boxKey struct {
	Name   string `json:"name"`
	Secret []byte `json:"secret"`
}

// boxKeySize is the key length of secretbox (XSalsa20-Poly1305) in bytes.
const boxKeySize = 32

// encryption creates the EncryptionConfiguration with a random key, if it does not exist. Users may add keys and
// providers to an existing file, which is only validated.
func (e *ensurer) encryption() error {
	found := false
	err := e.read(encryption, func(data []byte) error {
		found = true
		var c encryptionConfiguration
		if err := yaml.Unmarshal(data, &c); err != nil {
			return err
		}
		if c.Kind != encryptionKind || len(c.Resources) == 0 {
			return fmt.Errorf("not an %s with resources", encryptionKind)
		}
		e.keys = append(e.keys, component.File{Path: e.path(encryption), Mode: keyMode, Data: data})
		return nil
	})
	if err != nil || found {
		return err
	}
	secret := make([]byte, boxKeySize)
	if _, err := rand.Read(secret); err != nil {
		return fmt.Errorf("generate encryption key: %w", err)
	}
	data, err := component.YAML(encryptionConfiguration{
		TypeMeta: component.TypeMeta{APIVersion: "apiserver.config.k8s.io/v1", Kind: encryptionKind},
		Resources: []encryptedResources{{
			Resources: []string{"secrets"},
			// identity is last, so that unencrypted data can be read but is not written.
			Providers: []provider{{SecretBox: &secretBox{Keys: []boxKey{{Name: "key1", Secret: secret}}}}, {Identity: &struct{}{}}},
		}},
	})
	if err != nil {
		return err
	}
	e.keys = append(e.keys, component.File{Path: e.path(encryption), Mode: keyMode, Data: data, Durable: true})
	e.note(encryption, false)
	return nil
}

const encryptionKind = "EncryptionConfiguration"

// Kubeconfig renders a self-contained kubeconfig. The certificate name, its key and the cluster CA are read from dir
// and embedded. The result is a secret.
func Kubeconfig(dir, name, server, cluster string) ([]byte, error) {
	k := component.Kubeconfig{Server: server, Cluster: cluster, User: cluster}
	var errs []error
	for file, to := range map[string]*[]byte{
		ClusterCA + certSuffix: &k.CAData, name + certSuffix: &k.CertData, name + keySuffix: &k.KeyData,
	} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("not created yet: %w", err)
		}
		errs = append(errs, err)
		*to = data
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	return component.RenderKubeconfig(k)
}

// ClientKubeconfig returns the kubeconfig of a component that runs on each node. With the embedded control plane it
// refers to the certificate name. On a worker every component uses the node's certificate, so that the admission plugin
// NodeRestriction limits its writes to the node's own Node object.
func ClientKubeconfig(e component.Env, name string) ([]byte, error) {
	cluster := "rootlessnode-" + e.Config.Name
	if !e.Config.Joins() {
		return FileKubeconfig(name, e.APIServerURL, cluster)
	}
	return component.RenderKubeconfig(component.Kubeconfig{
		Server: e.APIServerURL, Cluster: cluster, User: name, CAFile: CertFile(ClusterCA), CertFile: NodeCert, KeyFile: NodeCert,
	})
}

// NodeCert is the kubelet's link to the file with the certificate and key of a worker. The kubelet replaces it when it
// renews the certificate (client-go, util/certificate). client-go reads a file in a kubeconfig again for each
// connection and every five minutes, and then closes the connections of the old certificate
// (transport/cert_rotation.go).
const NodeCert = layout.InsideKubeletPKI + "/kubelet-client-current.pem"

// FileKubeconfig renders a kubeconfig for use inside. It refers to the certificate name by its path, so that it remains
// valid when the certificate is renewed.
func FileKubeconfig(name, server, cluster string) ([]byte, error) {
	return component.RenderKubeconfig(component.Kubeconfig{
		Server: server, Cluster: cluster, User: name,
		CAFile: CertFile(ClusterCA), CertFile: CertFile(name), KeyFile: KeyFile(name),
	})
}
