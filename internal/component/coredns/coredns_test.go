package coredns

import (
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

func TestManifests(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	data, err := Manifests(e)
	assert.NilError(t, err)
	golden.AssertBytes(t, data, "manifests.golden")

	var (
		account    corev1.ServiceAccount
		role       rbacv1.ClusterRole
		binding    rbacv1.ClusterRoleBinding
		config     corev1.ConfigMap
		deployment appsv1.Deployment
		service    corev1.Service
	)
	documents := strings.Split(string(data), "---\n")
	objects := []any{&account, &role, &binding, &config, &deployment, &service}
	assert.Equal(t, len(documents), len(objects))
	for i, o := range objects {
		assert.NilError(t, yaml.UnmarshalStrict([]byte(documents[i]), o))
	}
	assert.Equal(t, service.Spec.ClusterIP, e.Config.Cluster.DNSAddress)
	pod := deployment.Spec.Template
	assert.Equal(t, pod.Spec.Containers[0].Image, e.Config.ControlPlane.CoreDNSImage)
	assert.Equal(t, pod.Spec.DNSPolicy, corev1.DNSDefault)
	assert.DeepEqual(t, service.Spec.Selector, deployment.Spec.Selector.MatchLabels)
	for k, v := range deployment.Spec.Selector.MatchLabels {
		assert.Equal(t, pod.Labels[k], v)
	}
	assert.Equal(t, binding.RoleRef.Name, role.Name)
	assert.Equal(t, binding.Subjects[0].Name, account.Name)
	assert.Assert(t, strings.Contains(config.Data["Corefile"], "kubernetes cluster.local "))
}

// The pods are replaced when the user's part of the configuration changes, and not otherwise.
func TestManifestsDependOnTheUsersConfiguration(t *testing.T) {
	t.Parallel()
	of := func(custom map[string]string) string {
		e := fixture.Env()
		e.CustomDNS = custom
		data, err := Manifests(e)
		assert.NilError(t, err)
		return string(data)
	}
	a := map[string]string{"a.override": "log", "b.server": "x {\n}"}
	assert.Equal(t, of(a), of(map[string]string{"b.server": "x {\n}", "a.override": "log"}))
	seen := map[string]bool{}
	for _, custom := range []map[string]string{nil, a, {"a.override": "log"}, {"a.override": "", "log": ""}, {"b.override": "log"}} {
		seen[of(custom)] = true
	}
	assert.Equal(t, len(seen), 5)
}

func TestManifestsCarryAnyValue(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.Config.ControlPlane.CoreDNSImage = "x: {y}\n---\nkind: Secret"
	data, err := Manifests(e)
	assert.NilError(t, err)
	assert.Equal(t, strings.Count("\n"+string(data), "\nkind:"), 6, "a value must not become another object")
}

func TestManifestsRefuse(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(component.Env){
		"cluster.dnsAddress": func(e component.Env) { e.Config.Cluster.DNSAddress = "" },
		"cluster.domain":     func(e component.Env) { e.Config.Cluster.Domain = "a }\n. {" },
	} {
		e := fixture.Env()
		change(e)
		_, err := Manifests(e)
		assert.ErrorContains(t, err, want)
	}
}

// TestCorefileForwardsIfServersExist checks that the forward plugin is left out without name servers, because CoreDNS
// would not start.
func TestCorefileForwardsIfServersExist(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.NameServers = nil
	data, err := Manifests(e)
	assert.NilError(t, err)
	assert.Assert(t, !strings.Contains(string(data), "forward ."))
	assert.Assert(t, strings.Contains(string(data), "kubernetes cluster.local"))
}
