// Package resources renders the initial Kubernetes objects of the embedded control plane: roles for rootlessnode's
// users, and the cluster DNS.
//
// Runs in: either side. It only renders.
package resources

import (
	_ "embed" // the manifests
	"errors"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/coredns"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/manifest"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
)

//go:embed rbac.yaml
var rbac []byte

//go:embed policies.yaml
var policies []byte

// Manifests returns all objects as a YAML stream, to be applied in order when the API server is ready. The namespace
// kube-system is the first one, because the API server creates it only some time after it is ready.
func Manifests(e component.Env) ([]byte, error) {
	objects, err := manifest.Decode(rbac)
	if err != nil {
		return nil, err
	}
	user := func(name string) []any {
		return []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}}
	}
	if err := errors.Join(
		objects.Set("ClusterRoleBinding", pki.UserKubeletClient, user(pki.UserKubeletClient), "subjects"),
		objects.Set("ClusterRoleBinding", pki.UserFlannel, user(pki.UserFlannel), "subjects"),
	); err != nil {
		return nil, err
	}
	if e.Config.EnforcesPolicies() {
		more, err := manifest.Decode(policies)
		if err != nil {
			return nil, err
		}
		if err := more.Set("ClusterRoleBinding", pki.UserNetworkPolicy, user(pki.UserNetworkPolicy), "subjects"); err != nil {
			return nil, err
		}
		objects = append(objects, more...)
	}
	if e.Config.ControlPlane.CoreDNS {
		stream, err := coredns.Manifests(e)
		if err != nil {
			return nil, err
		}
		dns, err := manifest.Decode(stream)
		if err != nil {
			return nil, err
		}
		objects = append(objects, dns...)
	}
	return objects.Encode()
}
