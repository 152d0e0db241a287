package resources

import (
	"encoding/base64"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/manifest"
)

func joinRBAC(foreign, policies bool) ([]byte, error) {
	c := config.Default()
	if policies {
		c.NetworkPolicy = config.NetworkPolicyKube
	}
	return JoinRBAC(c, foreign)
}

func TestJoinRBAC(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		foreign, policies bool
		file              string
		documents         int
	}{
		{false, false, "join-own.golden", 11}, {true, false, "join-foreign.golden", 8}, {true, true, "join-policies.golden", 10},
	} {
		data, err := joinRBAC(c.foreign, c.policies)
		assert.NilError(t, err)
		golden.AssertBytes(t, data, c.file)
		documents := strings.Split(string(data), "---\n")
		assert.Assert(t, is.Len(documents, c.documents))

		// Each binding refers to a role of the manifests or of Kubernetes, and each object matches its type.
		roles, bindings := map[string]bool{}, map[string]string{}
		for _, d := range documents {
			var kind struct{ Kind string }
			assert.NilError(t, yaml.Unmarshal([]byte(d), &kind))
			object := map[string]any{
				"Namespace": &corev1.Namespace{},
				"Role":      &rbacv1.Role{}, "ClusterRole": &rbacv1.ClusterRole{},
				"RoleBinding": &rbacv1.RoleBinding{}, "ClusterRoleBinding": &rbacv1.ClusterRoleBinding{},
				"ValidatingAdmissionPolicy":        &admissionregistrationv1.ValidatingAdmissionPolicy{},
				"ValidatingAdmissionPolicyBinding": &admissionregistrationv1.ValidatingAdmissionPolicyBinding{},
			}[kind.Kind]
			assert.Assert(t, object != nil, "%q in %s", kind.Kind, d)
			assert.NilError(t, yaml.UnmarshalStrict([]byte(d), object), d)
			switch o := object.(type) {
			case *rbacv1.Role:
				roles["Role "+o.Namespace+"/"+o.Name] = true
			case *rbacv1.ClusterRole:
				roles["ClusterRole /"+o.Name] = true
			case *rbacv1.RoleBinding:
				bindings[o.Namespace+"/"+o.Name] = o.RoleRef.Kind + " " + o.Namespace + "/" + o.RoleRef.Name
			case *rbacv1.ClusterRoleBinding:
				assert.Assert(t, bindings["/"+o.Name] == "", "duplicate: %s", o.Name)
				bindings["/"+o.Name] = o.RoleRef.Kind + " /" + o.RoleRef.Name
			}
		}
		for name, role := range bindings {
			assert.Check(t, roles[role] || strings.HasPrefix(role, "ClusterRole /system:"), "%s binds %s", name, role)
		}
	}
}

// TestJoinRBACConcurrent checks, with the race detector, that callers share no mutable data.
func TestJoinRBACConcurrent(t *testing.T) {
	t.Parallel()
	var got [2][]byte
	var two sync.WaitGroup
	for i := range got {
		two.Go(func() { got[i], _ = joinRBAC(false, true) })
	}
	two.Wait()
	assert.Assert(t, len(got[0]) > 0)
	assert.Equal(t, string(got[0]), string(got[1]))
}

// TestObsolete checks that no obsolete object is also applied, and that the object that indicates remaining objects is
// last.
func TestObsolete(t *testing.T) {
	t.Parallel()
	ids := func(stream []byte, err error) map[string]bool {
		assert.NilError(t, err)
		objects, err := manifest.Decode(stream)
		assert.NilError(t, err)
		all := map[string]bool{}
		for _, o := range objects {
			meta := o["metadata"].(map[string]any)
			all[fmt.Sprint(o["kind"], " ", meta["namespace"], " ", meta["name"])] = true
		}
		return all
	}
	e := fixture.Env()
	e.Config.NetworkPolicy = config.NetworkPolicyKube
	applied := ids(Manifests(e))
	maps.Copy(applied, ids(joinRBAC(false, true)))
	obsolete := ids(Obsolete(), nil)
	for id := range obsolete {
		assert.Assert(t, !applied[id], id)
	}
	// The objects of commit 862df23 in a cluster with workers and networkPolicy.
	for _, name := range []string{"kube-proxy", "flannel", "network-policy"} {
		assert.Assert(t, obsolete["Secret kube-system rootlessnode-"+name] && obsolete["ServiceAccount kube-system rootlessnode-"+name], name)
	}
	for _, name := range []string{"kube-proxy", "joined-flannel", "joined-network-policy", "renew-node-client"} {
		assert.Assert(t, obsolete["ClusterRoleBinding <nil> rootlessnode:"+name], name)
	}
	for _, name := range []string{"component-tokens", "network-policy-token"} {
		assert.Assert(t, obsolete["Role kube-system rootlessnode:"+name] && obsolete["RoleBinding kube-system rootlessnode:"+name], name)
	}
	assert.Assert(t, strings.HasSuffix(string(Obsolete()), "name: rootlessnode:joined-flannel\n"))
	policy := ids(NodePolicy(), nil)
	assert.Equal(t, len(policy), 2)
	for id := range policy {
		assert.Assert(t, applied[id], id)
	}
}

// TestJoinRBACDoesNotOverlapManifests checks that the two sets of manifests have no object in common, so that applying
// one does not revert the other.
func TestJoinRBACDoesNotOverlapManifests(t *testing.T) {
	t.Parallel()
	own, err := joinRBAC(false, true)
	assert.NilError(t, err)
	e := fixture.Env()
	e.Config.NetworkPolicy = config.NetworkPolicyKube
	first, err := Manifests(e)
	assert.NilError(t, err)
	seen := map[string]string{}
	for _, d := range strings.Split(string(first)+"---\n"+string(own), "---\n") {
		var o map[string]any
		assert.NilError(t, yaml.Unmarshal([]byte(d), &o))
		meta := o["metadata"].(map[string]any)
		namespace, _ := meta["namespace"].(string)
		id := strings.Join([]string{o["kind"].(string), namespace, meta["name"].(string)}, " ")
		text, err := yaml.Marshal(o)
		assert.NilError(t, err)
		if before, there := seen[id]; there {
			assert.Equal(t, string(text), before, id)
		}
		seen[id] = string(text)
	}
}

func TestClusterInfo(t *testing.T) {
	t.Parallel()
	data, err := ClusterInfo("https://192.0.2.1:6443", []byte("a certificate\n"))
	assert.NilError(t, err)
	var m corev1.ConfigMap
	assert.NilError(t, yaml.UnmarshalStrict(data, &m))
	assert.Equal(t, m.Namespace+"/"+m.Name, "kube-public/cluster-info")
	k, err := clientcmd.Load([]byte(m.Data["kubeconfig"]))
	assert.NilError(t, err)
	assert.Assert(t, k.Clusters[""] != nil && len(k.Clusters) == 1 && len(k.AuthInfos) == 0)
	assert.Equal(t, k.Clusters[""].Server, "https://192.0.2.1:6443")
	assert.Equal(t, string(k.Clusters[""].CertificateAuthorityData), "a certificate\n")
	assert.Assert(t, is.Contains(string(data), base64.StdEncoding.EncodeToString([]byte("a certificate\n"))))
}

func TestClusterFacts(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	for _, v6 := range []bool{false, true} {
		e.Config.Network.IPv6 = v6
		data, err := ClusterFacts(e)
		assert.NilError(t, err)
		var m corev1.ConfigMap
		assert.NilError(t, yaml.UnmarshalStrict(data, &m))
		assert.Equal(t, m.Namespace+"/"+m.Name, "kube-public/rootlessnode")
		want := map[string]string{
			"podCIDR": "10.42.0.0/16", "serviceCIDR": "10.43.0.0/16", "dnsAddress": "10.43.0.10", "domain": "cluster.local",
			"backend": "vxlan", "vxlanPort": "8472",
		}
		if v6 {
			want["podCIDRv6"], want["serviceCIDRv6"] = "fd00:10:42::/56", "fd00:10:43::/112"
		}
		assert.DeepEqual(t, m.Data, want)
	}
}
