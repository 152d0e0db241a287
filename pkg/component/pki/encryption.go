package pki

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
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

// encryption makes the EncryptionConfiguration with a random key, once. A file that is there belongs to the user from
// then on, who may add keys or providers to it; it is only checked to be one.
func (e *ensurer) encryption() error {
	found := false
	err := e.read(encryption, func(data []byte) error {
		found = true
		var c encryptionConfiguration
		if err := yaml.Unmarshal(data, &c); err != nil {
			return err
		}
		if c.Kind != encryptionKind || len(c.Resources) == 0 {
			return fmt.Errorf("it is not an %s with resources", encryptionKind)
		}
		e.keys = append(e.keys, component.File{Path: e.path(encryption), Mode: keyMode, Data: data})
		return nil
	})
	if err != nil || found {
		return err
	}
	secret := make([]byte, boxKeySize)
	if _, err := rand.Read(secret); err != nil {
		return fmt.Errorf("make encryption key: %w", err)
	}
	data, err := component.YAML(encryptionConfiguration{
		TypeMeta: component.TypeMeta{APIVersion: "apiserver.config.k8s.io/v1", Kind: encryptionKind},
		Resources: []encryptedResources{{
			Resources: []string{"secrets"},
			// identity is last: nothing is written in the clear, but what was is still read.
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

// Kubeconfig renders a kubeconfig that stands alone: the certificate called name, its key and the cluster's authority
// are read from dir and embedded. The result is a secret.
func Kubeconfig(dir, name, server, cluster string) ([]byte, error) {
	k := component.Kubeconfig{Server: server, Cluster: cluster, User: name}
	var errs []error
	for file, to := range map[string]*[]byte{
		ClusterCA + certSuffix: &k.CAData, name + certSuffix: &k.CertData, name + keySuffix: &k.KeyData,
	} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("not made yet: %w", err)
		}
		errs = append(errs, err)
		*to = data
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	return component.RenderKubeconfig(k)
}

// ClientKubeconfig returns the kubeconfig of a component that runs on each node. With the embedded control plane it names the
// certificate called name. In a cluster that the node joined every component uses the node's own certificate: the admission
// plugin NodeRestriction then confines its writes to the node's own Node object.
func ClientKubeconfig(e component.Env, name string) ([]byte, error) {
	cluster := "rootlessnode-" + e.Config.Name
	if !e.Config.Joins() {
		return FileKubeconfig(name, e.APIServerURL, cluster)
	}
	return component.RenderKubeconfig(component.Kubeconfig{
		Server: e.APIServerURL, Cluster: cluster, User: name, CAFile: CertFile(ClusterCA), CertFile: NodeCert, KeyFile: NodeCert,
	})
}

// NodeCert is the kubelet's link to the certificate and key, in one file, of a node that joined a cluster. The kubelet replaces
// it when it renews the certificate (client-go, util/certificate); client-go reads a file that a kubeconfig names again, for
// each connection and every five minutes, and then closes the connections of the old certificate (transport/cert_rotation.go).
const NodeCert = layout.InsideKubeletPKI + "/kubelet-client-current.pem"

// FileKubeconfig renders a kubeconfig for use inside. It names the certificate called name by its path, so that a
// renewed certificate needs no new kubeconfig.
func FileKubeconfig(name, server, cluster string) ([]byte, error) {
	return component.RenderKubeconfig(component.Kubeconfig{
		Server: server, Cluster: cluster, User: name,
		CAFile: CertFile(ClusterCA), CertFile: CertFile(name), KeyFile: KeyFile(name),
	})
}
