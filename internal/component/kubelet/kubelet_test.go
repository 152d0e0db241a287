package kubelet

import (
	"testing"

	"gotest.tools/v3/assert"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

func TestRender(t *testing.T) {
	t.Parallel()
	fixture.Golden(t, Render)
}

func TestRenderInACluster(t *testing.T) {
	t.Parallel()
	fixture.GoldenCluster(t, Render)
}

func decode(t *testing.T, e component.Env) kubeletv1beta1.KubeletConfiguration {
	t.Helper()
	r, err := Render(e)
	assert.NilError(t, err)
	var c kubeletv1beta1.KubeletConfiguration
	assert.NilError(t, yaml.UnmarshalStrict(fixture.File(r, "kubelet.yaml"), &c))
	assert.Equal(t, c.APIVersion, kubeletv1beta1.SchemeGroupVersion.String())
	return c
}

func TestConfigIsValid(t *testing.T) {
	t.Parallel()
	c := decode(t, fixture.Env())
	assert.DeepEqual(t, c.EnforceNodeAllocatable, []string{"pods"})
	assert.Equal(t, *c.OOMScoreAdj, int32(0))
	assert.Equal(t, *c.FailSwapOn, false)
	assert.Assert(t, !c.ProtectKernelDefaults)
	assert.Assert(t, *c.LocalStorageCapacityIsolation)
	assert.Assert(t, c.FeatureGates[gateUserNamespace])
	assert.Assert(t, c.UserNamespaces == nil)
	assert.Equal(t, *c.Authentication.Anonymous.Enabled, false)
	assert.Equal(t, c.Authorization.Mode, kubeletv1beta1.KubeletAuthorizationModeWebhook)
}

func TestExtraConfigIsMergedByField(t *testing.T) {
	t.Parallel()
	c := decode(t, fixture.Poor())
	assert.Equal(t, c.MaxPods, int32(12))
	assert.Equal(t, c.EvictionHard["memory.available"], "1Gi")
	assert.Equal(t, c.EvictionHard["nodefs.available"], "1%", "the other thresholds must stay")
	assert.Equal(t, *c.Authentication.Webhook.Enabled, true)
	assert.Equal(t, c.Authentication.Webhook.CacheTTL.Duration.String(), "1m0s")
	assert.Assert(t, c.OOMScoreAdj == nil, "null removes a field")
	assert.Equal(t, *c.UserNamespaces.IDsPerPod, int64(65536))
	assert.Assert(t, c.FeatureGates[gateUserNamespace] && c.FeatureGates["Example"])
}

func TestExtraConfigKeepsKind(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.Config.Kubelet.ExtraConfig = map[string]any{"kind": "Pod"}
	_, err := Render(e)
	assert.ErrorContains(t, err, "kubelet.extraConfig.kind")
}

func TestLabels(t *testing.T) {
	t.Parallel()
	assert.DeepEqual(t, Labels(fixture.Env()), map[string]string{component.LabelVolumes: component.VolumesHere})
	worker := fixture.Env()
	worker.Config.Join.Server = "https://192.0.2.1:6443"
	assert.Equal(t, len(Labels(worker)), 0)

	e := fixture.Poor()
	labels := Labels(e)
	assert.Equal(t, labels[LabelUnenforced], "cpu_cpuset_memory_pids")
	assert.Equal(t, labels["a"], "b")
	assert.Equal(t, len(e.Config.NodeLabels), 2, "the config must not be changed")

	e.Unenforced = []string{"cpu", "cpuset", "io", "memory", "pids", "hugetlb", "rdma", "misc", "dmem"}
	assert.Equal(t, len(validation.IsValidLabelValue(Labels(e)[LabelUnenforced])), 0)
	assert.Equal(t, len(validation.IsQualifiedName(LabelUnenforced)), 0)
}

func TestResolvConf(t *testing.T) {
	t.Parallel()
	data, err := resolvConf([]string{"10.0.2.3", "2001:db8::53"}, false)
	assert.NilError(t, err)
	assert.Equal(t, string(data), "nameserver 10.0.2.3\nnameserver 2001:db8::53\n")

	for want, servers := range map[string][]string{
		"no name servers":  nil,
		"127.0.0.53 is a":  {"10.0.2.3", "127.0.0.53"},
		"::1 is a":         {"::1"},
		"unexpected char":  {"resolver.example.com"},
		"ParseAddr(\"x\")": {"x", "127.0.0.1"},
	} {
		_, err := resolvConf(servers, false)
		assert.ErrorContains(t, err, want)
	}
	data, err = resolvConf(nil, true)
	assert.NilError(t, err)
	assert.Equal(t, len(data), 0, "a node without an uplink has no name servers")
}

// TestImagePullCredentials checks that images which were imported and also pulled under another name stay usable, and that a cluster
// of other users keeps the protection of images that were pulled with a Secret.
func TestImagePullCredentials(t *testing.T) {
	t.Parallel()
	assert.Equal(t, decode(t, fixture.Env()).ImagePullCredentialsVerificationPolicy, kubeletv1beta1.NeverVerify)
	assert.Equal(t, decode(t, fixture.Worker()).ImagePullCredentialsVerificationPolicy, kubeletv1beta1.ImagePullCredentialsVerificationPolicy(""))
}
