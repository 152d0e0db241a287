package component

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// YAML encodes v as YAML with its json tags.
func YAML(v any) ([]byte, error) {
	data, err := yaml.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode YAML: %w", err)
	}
	return data, nil
}

// TypeMeta is the header of Kubernetes objects and configuration files.
type TypeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}
