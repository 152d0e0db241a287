package apiserver

import (
	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
)

type admissionConfiguration struct {
	component.TypeMeta `json:",inline"`
	Plugins            []admissionPlugin `json:"plugins"`
}

type admissionPlugin struct {
	Name          string      `json:"name"`
	Configuration podSecurity `json:"configuration"`
}

// podSecurity is PodSecurityConfiguration of pod-security.admission.config.k8s.io/v1.
type podSecurity struct {
	component.TypeMeta `json:",inline"`
	Defaults           podSecurityDefaults   `json:"defaults"`
	Exemptions         podSecurityExemptions `json:"exemptions"`
}

type podSecurityDefaults struct {
	Enforce        string `json:"enforce"`
	EnforceVersion string `json:"enforce-version"`
	Audit          string `json:"audit"`
	AuditVersion   string `json:"audit-version"`
	Warn           string `json:"warn"`
	WarnVersion    string `json:"warn-version"`
}

type podSecurityExemptions struct {
	Usernames      []string `json:"usernames"`
	RuntimeClasses []string `json:"runtimeClasses"`
	Namespaces     []string `json:"namespaces"`
}

// admissionFiles renders the defaults of Pod Security admission, or returns nil if they are those of Kubernetes. The
// same level also warns: only pods are rejected, so users who apply a Deployment with such pods would not notice the
// rejection.
func admissionFiles(e component.Env) ([]component.File, error) {
	level := e.Config.PodSecurity
	if level == config.PodSecurityPrivileged {
		return nil, nil
	}
	const latest = "latest"
	data, err := component.YAML(admissionConfiguration{
		TypeMeta: component.TypeMeta{APIVersion: "apiserver.config.k8s.io/v1", Kind: "AdmissionConfiguration"},
		Plugins: []admissionPlugin{{Name: "PodSecurity", Configuration: podSecurity{
			TypeMeta: component.TypeMeta{APIVersion: "pod-security.admission.config.k8s.io/v1", Kind: "PodSecurityConfiguration"},
			Defaults: podSecurityDefaults{level, latest, level, latest, level, latest},
			// kube-system has the node's own pods and those of system add-ons.
			Exemptions: podSecurityExemptions{Usernames: []string{}, RuntimeClasses: []string{}, Namespaces: []string{"kube-system"}},
		}}},
	})
	if err != nil {
		return nil, err
	}
	return []component.File{{Path: component.RunFile("apiserver-admission.yaml"), Mode: 0o600, Data: data}}, nil
}
