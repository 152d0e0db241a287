package noderole

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gotest.tools/v3/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/trial"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func TestMain(m *testing.M) {
	// The checks of the host start this program for their trial, which would run the tests again.
	trials := map[string]func() error{layout.RoleTrial: trial.Wait, layout.RoleTrialInside: trial.Do}
	role, _ := layout.TakeRole()
	if run := trials[role]; run != nil {
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// TestReportedSince checks that readiness from before the start of the node does not count.
func TestReportedSince(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	node := func(heartbeat time.Time) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(heartbeat)},
		}}}
	}
	assert.Assert(t, !reportedSince(node(start.Add(-time.Second)), start))
	assert.Assert(t, reportedSince(node(start.Truncate(time.Second)), start), "the API keeps whole seconds")
	assert.Assert(t, reportedSince(node(start.Add(time.Minute)), start))
	assert.Assert(t, !reportedSince(&corev1.Node{}, start))
}

func TestOwnPorts(t *testing.T) {
	t.Parallel()
	api := portfwd.PortStatus{HostIP: "127.0.0.1", HostPort: 6443, Proto: "tcp", Owner: portfwd.Owner{Kind: portfwd.KindStatic, Name: apiForward}.String()}
	with := func(state portfwd.State) portfwd.PortStatus {
		p := api
		p.State = state
		return p
	}
	other := portfwd.PortStatus{Owner: "default/web/http", State: portfwd.StateFailed}
	open, err := ownPorts([]portfwd.PortStatus{other, with(portfwd.StatePending)})
	assert.NilError(t, err)
	assert.Assert(t, !open)
	open, err = ownPorts([]portfwd.PortStatus{with(portfwd.StateOpen), other})
	assert.NilError(t, err)
	assert.Assert(t, open)
	denied := portfwd.PortStatus{Kind: portfwd.KindService, State: portfwd.StateFailed, Reason: portfwd.ReasonDenied}
	assert.Equal(t, portStatuses([]portfwd.PortStatus{denied})[0].State, status.PortRefused, "not a fault of the node")
	denied.Kind = portfwd.KindStatic
	assert.Equal(t, portStatuses([]portfwd.PortStatus{denied})[0].State, status.PortFailed)
	failed := with(portfwd.StateFailed)
	failed.Error, failed.Hint = "address already in use", "choose another"
	_, err = ownPorts([]portfwd.PortStatus{failed})
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.ErrorContains(t, err, "127.0.0.1:6443/tcp (api.port): address already in use")
	assert.DeepEqual(t, errdefs.ReportOf(err).Hints, []string{"choose another"})
}

func TestForwardable(t *testing.T) {
	t.Parallel()
	got := forwardable(kubeapi.Service{
		Namespace: "a", Name: "b", UID: "u", Type: "NodePort", IPFamilies: []string{"IPv4"},
		Ports:      []kubeapi.ServicePort{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080}},
		ClusterIPs: []string{"10.43.0.5"}, ExternalIPs: []string{"192.0.2.1"}, ExternalTrafficPolicy: "Local", HealthCheckNodePort: 3,
		LoadBalancerClass: "c", Ingress: []string{"127.0.0.1"}, Annotations: map[string]string{"rootlessnode.dev/bind": "::"},
		LoadBalancerSourceRanges: []string{"192.0.2.0/24"}, Created: time.Unix(1, 0),
	})
	assert.DeepEqual(t, got, portfwd.Service{
		Namespace: "a", Name: "b", UID: "u", Type: "NodePort", IPFamilies: []string{"IPv4"},
		Ports:      []portfwd.ServicePort{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080}},
		ClusterIPs: []string{"10.43.0.5"}, ExternalIPs: []string{"192.0.2.1"}, ExternalTrafficPolicy: "Local", HealthCheckNodePort: 3,
		LoadBalancerClass: "c", Ingress: []string{"127.0.0.1"}, Annotations: map[string]string{"rootlessnode.dev/bind": "::"},
		LoadBalancerSourceRanges: []string{"192.0.2.0/24"}, Created: time.Unix(1, 0),
	})
}
