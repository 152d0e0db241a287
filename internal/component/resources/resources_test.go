package resources

import (
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

func TestManifests(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.Config.ControlPlane.CoreDNS, e.Config.Metrics.Enabled, e.Config.Storage = false, false, config.StorageNone
	data, err := Manifests(e)
	assert.NilError(t, err)
	golden.AssertBytes(t, data, "rbac.golden")

	var (
		namespace      corev1.Namespace
		kubelet        rbacv1.ClusterRoleBinding
		flannel        rbacv1.ClusterRole
		flannelBinding rbacv1.ClusterRoleBinding
		events         admissionregistrationv1.ValidatingAdmissionPolicy
		eventsBinding  admissionregistrationv1.ValidatingAdmissionPolicyBinding
	)
	documents := strings.Split(string(data), "---\n")
	objects := []any{&namespace, &events, &eventsBinding, &kubelet, &flannel, &flannelBinding}
	assert.Equal(t, len(documents), len(objects))
	for i, o := range objects {
		assert.NilError(t, yaml.UnmarshalStrict([]byte(documents[i]), o))
	}
	assert.Equal(t, kubelet.Subjects[0].Name, "rootlessnode:apiserver-kubelet-client")
	assert.Equal(t, flannelBinding.Subjects[0].Name, "rootlessnode:flannel")
	assert.Equal(t, flannelBinding.RoleRef.Name, flannel.Name)
}

func TestManifestsWithPolicies(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.Config.ControlPlane.CoreDNS, e.Config.Metrics.Enabled, e.Config.Storage = false, false, config.StorageNone
	e.Config.NetworkPolicy = config.NetworkPolicyKube
	data, err := Manifests(e)
	assert.NilError(t, err)
	documents := strings.Split(string(data), "---\n")
	assert.Equal(t, len(documents), 8)
	var (
		role    rbacv1.ClusterRole
		binding rbacv1.ClusterRoleBinding
	)
	assert.NilError(t, yaml.UnmarshalStrict([]byte(documents[6]), &role))
	assert.NilError(t, yaml.UnmarshalStrict([]byte(documents[7]), &binding))
	assert.Equal(t, binding.RoleRef.Name, role.Name)
	assert.Equal(t, binding.Subjects[0].Name, "rootlessnode:network-policy")
	for _, r := range role.Rules {
		assert.DeepEqual(t, r.Verbs, []string{"list", "watch"})
	}
}

func TestManifestsWithDNS(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.Config.Metrics.Enabled = false
	data, err := Manifests(e)
	assert.NilError(t, err)
	assert.Equal(t, strings.Count(string(data), "---\n"), 13)
	assert.Assert(t, strings.HasPrefix(string(data), "apiVersion: v1\nkind: Namespace\n"), "the namespace comes first")
}

func TestLabel(t *testing.T) {
	t.Parallel()
	data, err := Label([]byte("kind: A\nmetadata: {name: a}\n---\n# comment\nkind: B\nmetadata: {name: b, labels: {x: z}}\n"))
	assert.NilError(t, err)
	assert.Equal(t, string(data), `kind: A
metadata:
  labels:
    app.kubernetes.io/managed-by: rootlessnode
  name: a
---
kind: B
metadata:
  labels:
    app.kubernetes.io/managed-by: rootlessnode
    x: z
  name: b
`)
	_, err = Label([]byte("kind: A\n"))
	assert.ErrorContains(t, err, "A without metadata")
}
