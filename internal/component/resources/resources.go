// Package resources renders the initial Kubernetes objects of the embedded control plane: those of the components, and
// the permissions of joining nodes.
//
// Runs in: either side. It only renders.
package resources

import (
	_ "embed" // the manifests
	"fmt"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/manifest"
)

//go:embed namespace.yaml
var namespace []byte

// Every object that the node keeps as it created it has this label. Selector selects these objects.
const (
	label      = "app.kubernetes.io/managed-by"
	labelValue = "rootlessnode"
	Selector   = label + "=" + labelValue
)

// Labels returns the label.
func Labels() map[string]string { return map[string]string{label: labelValue} }

// Label adds the label to every object of a YAML stream.
func Label(stream []byte) ([]byte, error) {
	objects, err := manifest.Decode(stream)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		meta, ok := o["metadata"].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%v without metadata", o["kind"])
		}
		labels, ok := meta["labels"].(map[string]any)
		if !ok {
			labels = map[string]any{}
			meta["labels"] = labels
		}
		labels[label] = labelValue
	}
	return objects.Encode()
}

// Manifests returns all objects as a YAML stream, to be applied in order when the API server is ready. The namespace
// kube-system is the first one, because the API server creates it only some time after it is ready.
func Manifests(e component.Env) ([]byte, error) {
	objects, err := manifest.Decode(namespace)
	if err != nil {
		return nil, err
	}
	for _, c := range catalogue.Enabled(e.Config) {
		if c.Manifest == nil {
			continue
		}
		stream, err := c.Manifest(e)
		if err != nil {
			return nil, err
		}
		more, err := manifest.Decode(stream)
		if err != nil {
			return nil, fmt.Errorf("manifest of %s: %w", c.Name, err)
		}
		objects = append(objects, more...)
	}
	return objects.Encode()
}
