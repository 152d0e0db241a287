package noderole

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

var nodeStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func reportedNode(heartbeat time.Time, conditions ...corev1.NodeCondition) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: "1", Labels: map[string]string{"a": "b"}}}
	for _, c := range conditions {
		c.LastHeartbeatTime = metav1.NewTime(heartbeat)
		n.Status.Conditions = append(n.Status.Conditions, c)
	}
	return n
}

func TestNodeConditions(t *testing.T) {
	t.Parallel()
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	unready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "no CNI"}
	disk := corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Message: "kubelet has disk pressure"}
	memory := corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}
	for _, tc := range []struct {
		name            string
		node            *corev1.Node
		ready, pressure string // empty: true
	}{
		{"ready", reportedNode(nodeStart, ready, memory), "", ""},
		{"not ready", reportedNode(nodeStart, unready), "NodeNotReady Ready is False (KubeletNotReady): no CNI", ""},
		{"of the last run", reportedNode(nodeStart.Add(-time.Hour), ready, disk), "Starting the kubelet has not updated the Node object since the node started", "unknown"},
		{"disk pressure", reportedNode(nodeStart, ready, memory, disk), "", "DiskPressure DiskPressure: kubelet has disk pressure"},
		{"missing", &corev1.Node{}, "NodeNotFound the Node object does not exist", "unknown"},
	} {
		r, p := nodeConditions(tc.node, nodeStart, false)
		assert.Check(t, is.Equal(strings.TrimSpace(r.Reason+" "+r.Message), tc.ready), tc.name)
		assert.Check(t, is.Equal(r.OK, tc.ready == ""), tc.name)
		got := strings.TrimSpace(p.Reason + " " + p.Message)
		if p.Type == "" {
			got = "unknown"
		}
		assert.Check(t, is.Equal(got, tc.pressure), tc.name)
		assert.Check(t, is.Equal(len(p.Steps) > 0, strings.HasPrefix(tc.pressure, "Disk")), tc.name)
	}
	removed, _ := nodeConditions(&corev1.Node{}, nodeStart, true)
	assert.Assert(t, is.Contains(removed.Steps.String(), "create a bootstrap token"))
}

func TestRestoredNode(t *testing.T) {
	t.Parallel()
	last := reportedNode(nodeStart)
	last.Spec = corev1.NodeSpec{
		PodCIDR: "10.42.0.0/24", PodCIDRs: []string{"10.42.0.0/24"}, Unschedulable: true,
		Taints: []corev1.Taint{{Key: "node.kubernetes.io/unschedulable"}, {Key: "gpu", Effect: corev1.TaintEffectNoSchedule}},
	}
	got := restoredNode(last)
	assert.DeepEqual(t, got.Spec, corev1.NodeSpec{
		PodCIDR: "10.42.0.0/24", PodCIDRs: []string{"10.42.0.0/24"}, Taints: []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}},
	})
	assert.DeepEqual(t, got.Labels, last.Labels)
	assert.Equal(t, string(got.UID), "")
}

// nodeAPI is an API server with one Node, which a client may delete and create.
type nodeAPI struct {
	stubAPI

	mu     sync.Mutex
	exists bool
}

func (a *nodeAPI) reply(r *http.Request) (int, any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []any{}
	if r.Method == http.MethodPost {
		a.exists = true
		return http.StatusCreated, map[string]any{}
	}
	if a.exists {
		items = append(items, reportedNode(nodeStart, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}))
	}
	return http.StatusOK, map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": items}
}

// TestNodeWatchRestores checks that the Node object is created again, as it was, and the kubelet restarted.
func TestNodeWatchRestores(t *testing.T) {
	t.Parallel()
	api := &nodeAPI{exists: true}
	api.answer = api.reply
	client := api.start(t)
	c, err := client()
	assert.NilError(t, err)
	hub := status.NewHub(status.Status{}, status.Options{})
	restarted := make(chan string, 1)
	w := &nodeWatch{name: "vm", started: nodeStart, hub: hub, log: silentLog(), client: client, patience: time.Millisecond}
	w.restart = func(unit string) error { restarted <- unit; return nil }
	assert.NilError(t, w.restore(t.Context(), c, reportedNode(nodeStart)))
	assert.Equal(t, <-restarted, "kubelet")
	assert.Check(t, strings.HasPrefix(api.requests[0], "POST /api/v1/nodes {"))
	assert.Check(t, is.Contains(api.requests[0], `"labels":{"a":"b"}`))
	assert.Equal(t, hub.Events()[0].Reason, "restored the Node object vm, which was deleted")
}

// TestNodeWatchWaits checks that a Node that never existed in this run is not created by the watch.
func TestNodeWatchWaits(t *testing.T) {
	t.Parallel()
	api := &nodeAPI{}
	api.answer = api.reply
	hub := status.NewHub(status.Status{}, status.Options{})
	w := &nodeWatch{name: "vm", started: nodeStart, hub: hub, log: silentLog(), client: api.start(t), patience: time.Nanosecond}
	w.restart = func(string) error { t.Error("restarted"); return nil }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx, func() {}) }()
	for s, changed := hub.Snapshot(), hub.Changed(); s.Condition(status.ConditionNodeReady) == nil; s, changed = hub.Snapshot(), hub.Changed() {
		<-changed
	}
	cancel()
	assert.NilError(t, <-done)
	for _, r := range api.requests {
		assert.Check(t, strings.HasPrefix(r, "GET "), r)
	}
}
