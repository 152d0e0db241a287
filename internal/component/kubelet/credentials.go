package kubelet

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// credentialConfig is the part of CredentialProviderConfig (kubelet.config.k8s.io/v1) that is set here.
type credentialConfig struct {
	component.TypeMeta `json:",inline"`

	Providers []credentialProvider `json:"providers"`
}

type credentialProvider struct {
	Name                 string        `json:"name"`
	APIVersion           string        `json:"apiVersion"`
	MatchImages          []string      `json:"matchImages"`
	DefaultCacheDuration string        `json:"defaultCacheDuration"`
	Env                  []variableSet `json:"env"`
}

type variableSet struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// credentialPlugin returns the kubelet's files and arguments for the account's logins at registries. The plugin is this module's own
// program, which gets its role from the environment.
func credentialPlugin(e component.Env) ([]component.File, []string, error) {
	p := e.Credentials
	if p == nil {
		return nil, nil, nil
	}
	c := credentialConfig{
		TypeMeta: component.TypeMeta{APIVersion: "kubelet.config.k8s.io/v1", Kind: "CredentialProviderConfig"},
		Providers: []credentialProvider{{
			Name: filepath.Base(p.Program), APIVersion: "credentialprovider.kubelet.k8s.io/v1",
			MatchImages: registryPatterns(p.Ports), DefaultCacheDuration: disabled,
		}},
	}
	for _, kv := range layout.RoleEnv(layout.RoleCredentials, layout.Runtime{Dir: p.RuntimeDir}) {
		name, value, _ := strings.Cut(kv, "=")
		c.Providers[0].Env = append(c.Providers[0].Env, variableSet{Name: name, Value: value})
	}
	data, err := yaml.Marshal(c)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the configuration of credential providers: %w", err)
	}
	file := component.RunFile("credential-provider.yaml")
	return []component.File{{Path: file, Mode: 0o600, Data: data}}, []string{
		component.Flag("image-credential-provider-config", file),
		component.Flag("image-credential-provider-bin-dir", filepath.Dir(p.Program)),
	}, nil
}

// maxLabels is the number of labels in the longest registry name for which the kubelet runs the plugin.
const maxLabels = 8

// commonPorts are ports on which registries usually listen.
func commonPorts() []int { return []int{443, 5000, 5001, 5443, 8443} }

// registryPatterns returns patterns for the images of all registries. A pattern of the kubelet matches names with the same number of
// labels, and with the same port, for which there is no wildcard.
func registryPatterns(ports []int) []string {
	ports = slices.Concat(ports, commonPorts())
	slices.Sort(ports)
	var out []string
	host := "*"
	for range maxLabels {
		out = append(out, host)
		for _, port := range slices.Compact(ports) {
			out = append(out, fmt.Sprintf("%s:%d", host, port))
		}
		host += ".*"
	}
	return out
}
