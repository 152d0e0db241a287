package noderole

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// lastPod returns a pod as the API server has it when the node starts.
func lastPod(name string, containerReady bool, ready corev1.ConditionStatus) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Ready: containerReady}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
		},
	}
}

// TestPodsReturn checks that the node waits for the pods that were ready, whatever their Ready condition is meanwhile, and then for the
// ports of their Services.
func TestPodsReturn(t *testing.T) {
	t.Parallel()
	deleted := lastPod("deleted", true, corev1.ConditionTrue)
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	before := []corev1.Pod{lastPod("web", true, corev1.ConditionFalse), lastPod("crashing", false, corev1.ConditionFalse), deleted}
	api := &stubAPI{}
	reset := false
	api.answer = func(r *http.Request) (int, any) {
		if r.URL.Path != "/api/v1/pods" {
			return http.StatusOK, discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				Endpoints:  []discoveryv1.Endpoint{{TargetRef: &corev1.ObjectReference{UID: "web"}}},
			}}}
		}
		if !reset {
			return http.StatusOK, corev1.PodList{Items: before}
		}
		return http.StatusOK, corev1.PodList{Items: []corev1.Pod{lastPod("web", true, corev1.ConditionTrue), before[1]}}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NilError(t, err)
	defer l.Close()
	hub := status.NewHub(status.Status{}, status.Options{})
	web := status.Port{
		HostIP: "127.0.0.1", HostPort: 30080, Proto: "tcp", Kind: portfwd.KindService, Namespace: "default", Name: "web",
		NodePort: l.Addr().(*net.TCPAddr).Port, State: status.PortWaiting,
	}
	other := web
	other.Name, other.NodePort = "other", 1
	setPorts := func(state string) {
		hub.Update(func(s *status.Status) { web.State = state; s.Ports = []status.Port{web, other} })
	}
	setPorts(status.PortWaiting)
	r := &podReturn{node: "vm", address: "127.0.0.1", client: api.start(t), hub: hub, log: logrus.New(), known: make(chan struct{})}
	assert.NilError(t, r.aroundReset(t.Context(), func(context.Context) error {
		select {
		case <-r.known:
			t.Error("the status of the last run counts as that of this run")
		default:
		}
		reset = true
		return nil
	}))
	assert.DeepEqual(t, r.pods, []kubeapi.RunningPod{{Namespace: "default", Name: "web", UID: "web"}})
	assert.DeepEqual(t, r.notReady([]kubeapi.RunningPod{{UID: "web"}, {UID: "new"}}), []string{"default/web"})
	assert.Check(t, is.Len(r.notReady(nil), 0), "a pod that is gone is not waited for")

	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(t.Context()) }()
	s := waitRestored(t, hub, func(x *status.Restored) bool { return x != nil && len(x.Waiting) == 1 })
	assert.DeepEqual(t, s, &status.Restored{Pods: 1, Waiting: []string{"port 127.0.0.1:30080/tcp"}})
	setPorts(status.PortForwarded)
	s = waitRestored(t, hub, func(x *status.Restored) bool { return x.Done })
	assert.DeepEqual(t, s, &status.Restored{Pods: 1, Done: true})
	<-ended
	r.Run(t.Context()) // after a restart of the container runtime
}

// waitRestored waits for a status whose Restored satisfies is, and returns it.
func waitRestored(t *testing.T, hub *status.Hub, is func(*status.Restored) bool) *status.Restored {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for s := hub.Snapshot(); ; {
		if is(s.Restored) {
			return s.Restored
		}
		var err error
		s, err = hub.Wait(ctx, s.ResourceVersion)
		assert.NilError(t, err)
	}
}

// TestNoPodsReturn checks a first start, and one whose API server does not answer.
func TestNoPodsReturn(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusOK, http.StatusForbidden} {
		api := &stubAPI{answer: func(*http.Request) (int, any) { return code, corev1.PodList{} }}
		hub := status.NewHub(status.Status{}, status.Options{})
		r := &podReturn{node: "vm", client: api.start(t), hub: hub, log: logrus.New(), known: make(chan struct{})}
		assert.NilError(t, r.aroundReset(t.Context(), func(context.Context) error { return nil }))
		r.Run(t.Context())
		snapshot := hub.Snapshot()
		assert.DeepEqual(t, snapshot.Restored, &status.Restored{Done: true})
	}
}
