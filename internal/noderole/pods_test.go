package noderole

import (
	"context"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// TestOrderOfStop checks that the node stops its pods after the kubelet and before the units that pods may use.
func TestOrderOfStop(t *testing.T) {
	t.Parallel()
	pods := (&podStopper{cfg: config.Default()}).unit("containerd", supervisor.Backoff{})
	assert.DeepEqual(t, pods.StopAfter, []string{"kubelet"})

	task := func(context.Context, func()) error { return nil }
	units := []supervisor.Unit{pods, {Name: unitPorts, Task: task}, {Name: unitHostPorts, Task: task}}
	for _, c := range catalogue.All() {
		units = append(units, supervisor.Unit{Name: c.Name, Task: task})
	}
	stopAfterPods(units, catalogue.All())
	after := map[string]bool{}
	for _, u := range units {
		after[u.Name] = len(u.StopAfter) == 1 && u.StopAfter[0] == unitPods
	}
	for name, want := range map[string]bool{
		"kube-apiserver": true, "flannel": true, "kube-network-policies": true, "ports": true, "host-ports": true,
		"kube-proxy": false, "kubelet": false, "pods": false,
	} {
		assert.Check(t, after[name] == want, name)
	}
	_, err := supervisor.New(units, supervisor.Options{})
	assert.NilError(t, err)
}

func TestPodsToStop(t *testing.T) {
	t.Parallel()
	grace := int64(3)
	assert.DeepEqual(t, podsToStop([]kubeapi.NodePod{
		{UID: "a", Priority: 1_999_999_999, RestartPolicy: "Never", Containers: []string{"c"}, Sidecars: []string{"s"}, DeletionGraceSeconds: &grace},
		{UID: "b", Priority: 2_000_000_000},
		{UID: "c", Static: true},
	}), []criclient.Pod{
		{UID: "a", RestartPolicy: "Never", Containers: []string{"c"}, Sidecars: []string{"s"}, GraceSeconds: &grace},
		{UID: "b", Critical: true},
		{UID: "c", Critical: true},
	})
}

func TestShortList(t *testing.T) {
	t.Parallel()
	assert.Equal(t, shortList(nil), "")
	assert.Equal(t, shortList([]string{"a", "b", "c", "d", "e"}), "a, b, c, d, e")
	assert.Equal(t, shortList([]string{"a", "b", "c", "d", "e", "f", "g"}), "a, b, c, d, e and 2 more")
}

func TestLongestGrace(t *testing.T) {
	t.Parallel()
	assert.Equal(t, longestGrace(nil, time.Minute), time.Minute)
	assert.Equal(t, longestGrace([]kubeapi.NodePod{{GraceSeconds: 1}}, time.Minute), programGrace)
	assert.Equal(t, longestGrace([]kubeapi.NodePod{{GraceSeconds: 30}, {GraceSeconds: 45}}, time.Minute), 45*time.Second)
}
