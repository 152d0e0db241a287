package pki

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"
)

// anyEncryption is the part of an EncryptionConfiguration that describes its keys, with all providers that Kubernetes has.
type anyEncryption struct {
	Kind      string `json:"kind"`
	Resources []struct {
		Resources []string                  `json:"resources"`
		Providers []map[string]*anyProvider `json:"providers"`
	} `json:"resources"`
}

// anyProvider is one provider: a list of keys, or the name of a key management service.
type anyProvider struct {
	Keys []struct {
		Name   string `json:"name"`
		Secret string `json:"secret"`
	} `json:"keys"`
	Name string `json:"name"`
}

// SecretKeys returns the keys that an EncryptionConfiguration has for Secrets, the key with which they are written first. A key is
// described by its provider, its name and a part of its digest, from which the key cannot be derived.
func SecretKeys(config []byte) ([]string, error) {
	var c anyEncryption
	if err := yaml.Unmarshal(config, &c); err != nil {
		return nil, err
	}
	if c.Kind != encryptionKind {
		return nil, fmt.Errorf("not an %s", encryptionKind)
	}
	var keys []string
	for _, r := range c.Resources {
		if !slices.ContainsFunc(r.Resources, func(name string) bool { return slices.Contains([]string{"secrets", "*.", "*.*"}, name) }) {
			continue
		}
		for _, kinds := range r.Providers {
			for kind, p := range kinds {
				keys = append(keys, p.describe(kind)...)
			}
		}
		return keys, nil // the first entry for a resource counts
	}
	return []string{plainText}, nil
}

// plainText is the provider without encryption.
const plainText = "identity"

// describe returns the descriptions of the keys of a provider.
func (p *anyProvider) describe(kind string) []string {
	if p == nil || len(p.Keys) == 0 && p.Name == "" {
		return []string{kind}
	}
	if len(p.Keys) == 0 {
		return []string{kind + " " + p.Name}
	}
	keys := make([]string, len(p.Keys))
	for i, k := range p.Keys {
		sum := sha256.Sum256([]byte(k.Secret))
		keys[i] = fmt.Sprintf("%s %s (sha256:%x)", kind, k.Name, sum[:6])
	}
	return keys
}
